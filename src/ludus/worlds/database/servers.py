"""Tables on a database server: MariaDB or MySQL through PyMySQL, PostgreSQL through psycopg.

Promise: each session has a database and an account of its own; both are dropped when it closes, and
those of a killed process when the next process connects. A session holds a lock named like its
database, so that the server knows which are in use. A query that takes too long is stopped, rows
that the model is not shown are not fetched, and a server that goes away fails the session.
"""

from __future__ import annotations

import importlib
import itertools
import re
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ludus.errors import ConfigError, EnvironmentFailed, border
from ludus.worlds.database.store import TOO_LONG, QueryRefused, Table, one_line, quoted, shown, written

QUERY_S = 5.0
_LOST = {1053, 1927, 2003, 2006, 2013, 2055}
"""MySQL's error codes for a lost connection."""
_OWN = re.compile(r"ludus_[0-9a-f]{16}")
_swept: set[str] = set()
"""Servers on which this process has dropped what killed processes left; once is enough."""


def open_server(url: str, tables: Sequence[Table]) -> MariaStore | PostgresStore:
    scheme = urlsplit(url).scheme
    if scheme in ("mysql", "mariadb"):
        return MariaStore(url, tables)
    if scheme in ("postgresql", "postgres"):
        return PostgresStore(url, tables)
    raise ConfigError(f"database: url begins with {scheme!r}; expected mysql://, mariadb:// or postgresql://")


class MariaStore:
    def __init__(self, url: str, tables: Sequence[Table]) -> None:
        self._mysql = _imported("pymysql")
        self._address = _address(url)
        self._own, self._password = f"ludus_{secrets.token_hex(8)}", secrets.token_hex(16)
        with border(EnvironmentFailed, f"database: no connection to {urlsplit(url).hostname or 'the local socket'}"):
            self._admin = self._mysql.connect(**self._address, autocommit=True, charset="utf8mb4")
        try:
            self._sweep_once(url)
            self._prepare(tables)
            self._session = self._connected()
        except Exception as error:
            self.close()
            raise EnvironmentFailed(f"database: the session's own database could not be made: {error}") from error

    def execute(self, query: str) -> str:
        cursor = self._session.cursor(self._mysql.cursors.SSCursor)
        try:
            cursor.execute(query)
            if cursor.description is None:
                return written(cursor.rowcount)
            text = shown([column[0] for column in cursor.description], cursor)
            if text.endswith("[TRUNCATED]"):
                self._kill("QUERY")  # closing the cursor would read all rows left, perhaps without end
            return text
        except self._mysql.MySQLError as error:
            raise QueryRefused(self._reason(error)) from None
        except (ValueError, OverflowError) as error:
            raise QueryRefused(one_line(str(error))) from None
        finally:
            with suppress(self._mysql.MySQLError, AttributeError):  # PyMySQL's, on a lost connection
                cursor.close()

    def rows(self, table: str) -> list[tuple[Any, ...]] | None:
        try:
            with self._admin.cursor() as cursor:
                cursor.execute(f"SELECT * FROM `{self._own}`.{quoted(table, '`')}")
                return list(cursor.fetchall())
        except self._mysql.ProgrammingError:
            return None
        except self._mysql.MySQLError as error:
            raise EnvironmentFailed(f"database: the server went away: {error}") from error

    def close(self) -> None:
        if hasattr(self, "_session"):
            self._session._force_close()
        self._drop(self._own)
        with suppress(self._mysql.MySQLError):
            self._admin.close()

    def _drop(self, name: str) -> None:
        with suppress(self._mysql.MySQLError), self._admin.cursor() as cursor:
            cursor.execute(f"DROP USER IF EXISTS `{name}`@`%`")
            cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")  # last: an interrupted drop is found by it

    def _sweep_once(self, url: str) -> None:
        if url in _swept:
            return
        _swept.add(url)
        with suppress(self._mysql.MySQLError), self._admin.cursor() as cursor:
            cursor.execute("SELECT schema_name, IS_USED_LOCK(schema_name) FROM information_schema.schemata")
            for name, holder in cursor.fetchall():
                if _OWN.fullmatch(name) and holder is None:
                    self._drop(name)

    def _prepare(self, tables: Sequence[Table]) -> None:
        with self._admin.cursor() as cursor:
            cursor.execute("SELECT GET_LOCK(%s, 0)", (self._own,))  # first, or others drop the database
            cursor.execute(f"CREATE DATABASE `{self._own}` CHARACTER SET utf8mb4")
            cursor.execute(f"CREATE USER `{self._own}`@`%%` IDENTIFIED BY %s", (self._password,))
            cursor.execute(f"GRANT ALL ON `{self._own}`.* TO `{self._own}`@`%`")
            cursor.execute(f"USE `{self._own}`")
            _fill(cursor, tables, quote="`")

    def _connected(self) -> Any:
        own = {"user": self._own, "password": self._password, "database": self._own}
        return self._mysql.connect(
            **(self._address | own), autocommit=True, charset="utf8mb4", read_timeout=QUERY_S, write_timeout=QUERY_S
        )

    def _again(self) -> None:
        """Replaces the connection, and ends what the old one is doing."""
        self._kill("CONNECTION")
        self._session._force_close()
        self._session = self._connected()

    def _kill(self, what: str) -> None:
        with suppress(self._mysql.MySQLError), self._admin.cursor() as cursor:
            cursor.execute(f"KILL {what} {self._session.thread_id()}")

    def _reason(self, error: Exception) -> str:
        if error.args and error.args[0] not in _LOST and error.args[0] != 0:
            return one_line(str(error.args[-1]))
        try:
            self._admin.ping(reconnect=False)
            self._again()
        except self._mysql.MySQLError as lost:
            raise EnvironmentFailed(f"database: the server went away: {lost}") from error
        return TOO_LONG


class PostgresStore:
    def __init__(self, url: str, tables: Sequence[Table]) -> None:
        self._pg = _imported("psycopg")
        self._url, self._own, self._password = url, f"ludus_{secrets.token_hex(8)}", secrets.token_hex(16)
        with border(EnvironmentFailed, f"database: no connection to {urlsplit(url).hostname or 'the local socket'}"):
            self._admin = self._pg.connect(url, autocommit=True)
        try:
            self._sweep_once(url)
            self._admin.execute("SELECT pg_advisory_lock(%s)", (_key(self._own),))  # first, or others drop the database
            self._admin.execute(f"CREATE ROLE {self._own} LOGIN PASSWORD '{self._password}'")
            self._admin.execute(f"GRANT {self._own} TO CURRENT_USER")
            self._admin.execute(f"CREATE DATABASE {self._own} OWNER {self._own}")
            self._session = self._connected()
            with self._session.cursor() as cursor:
                _fill(cursor, tables, quote='"')
        except Exception as error:
            self.close()
            raise EnvironmentFailed(f"database: the session's own database could not be made: {error}") from error

    def execute(self, query: str) -> str:
        try:
            with self._limited(), self._session.cursor() as cursor:
                return self._streamed(cursor, query)
        except self._pg.errors.QueryCanceled:
            raise QueryRefused(TOO_LONG) from None
        except self._pg.Error as error:
            if self._session.broken or self._session.closed:
                raise EnvironmentFailed(f"database: the server went away: {error}") from error
            raise QueryRefused(one_line(str(error))) from None
        except (ValueError, OverflowError) as error:
            raise QueryRefused(one_line(str(error))) from None
        finally:
            if self._session.info.transaction_status == self._pg.pq.TransactionStatus.ACTIVE:
                self._again()  # a COPY waits for data that nobody sends

    def _streamed(self, cursor: Any, query: str) -> str:
        rows = cursor.stream(query)
        try:
            first = next(rows, None)
        except self._pg.ProgrammingError as error:
            if error.sqlstate is not None or self._session.info.transaction_status:
                raise
            return "ok"  # psycopg's own complaint: a statement without rows has nothing to stream
        if first is None:
            return "(no rows)"
        text = shown([column.name for column in cursor.description], itertools.chain((first,), rows))
        if text.endswith("[TRUNCATED]"):
            self._again()  # before the rows are closed, which would read all rows left
        rows.close()
        return text

    def _connected(self) -> Any:
        own = {"dbname": self._own, "user": self._own, "password": self._password}
        return self._pg.connect(self._url, **own, autocommit=True)

    def _again(self) -> None:
        """Replaces the connection, and ends what the old one is doing."""
        try:
            self._session.close()
            self._session = self._connected()
        except self._pg.Error as error:
            raise EnvironmentFailed(f"database: the server went away: {error}") from error

    def rows(self, table: str) -> list[tuple[Any, ...]] | None:
        try:
            with self._limited():
                return list(self._session.execute(f"SELECT * FROM {quoted(table)}").fetchall())
        except self._pg.errors.UndefinedTable:
            return None
        except self._pg.Error as error:
            raise EnvironmentFailed(f"database: the table {table!r} could not be read: {error}") from error

    def close(self) -> None:
        if hasattr(self, "_session"):
            self._session.close()
        self._drop(self._own)
        self._admin.close()

    def _drop(self, name: str) -> None:
        with suppress(self._pg.Error):
            self._admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            self._admin.execute(f"DROP ROLE IF EXISTS {name}")  # last: an interrupted drop is found by it

    def _sweep_once(self, url: str) -> None:
        if url in _swept:
            return
        _swept.add(url)
        with suppress(self._pg.Error):
            for (name,) in self._admin.execute("SELECT rolname FROM pg_roles").fetchall():
                if _OWN.fullmatch(name) and self._free(name):
                    self._drop(name)

    def _free(self, name: str) -> bool:
        (taken,) = self._admin.execute("SELECT pg_try_advisory_lock(%s)", (_key(name),)).fetchone()
        return bool(taken)

    @contextmanager
    def _limited(self) -> Iterator[None]:
        timer = threading.Timer(QUERY_S, self._session.cancel)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _fill(cursor: Any, tables: Sequence[Table], *, quote: str) -> None:
    for table in tables:
        cursor.execute(table.create(quote))
        marks = ", ".join(["%s"] * len(table.columns))
        cursor.executemany(f"INSERT INTO {quoted(table.name, quote).replace('%', '%%')} VALUES ({marks})", table.rows)


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"database: a url needs {module}; pip install 'ludus[database]'") from error


def _address(url: str) -> dict[str, Any]:
    """PyMySQL's arguments, from mysql://user:password@host:port or ...?unix_socket=PATH."""
    parts = urlsplit(url)
    found = {
        "host": parts.hostname,
        "port": parts.port,
        "user": unquote(parts.username) if parts.username else None,
        "password": unquote(parts.password) if parts.password else None,
        **dict(parse_qsl(parts.query)),
    }
    return {name: value for name, value in found.items() if value is not None}


def _key(name: str) -> int:
    """The number of a name's lock: PostgreSQL's advisory locks have no names."""
    return int(name.removeprefix("ludus_")[:15], 16)
