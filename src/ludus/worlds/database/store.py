"""A session's tables in this process, in SQLite.

Promise: whatever a query does, it ends soon, answers in a few lines, and touches this session only:
a budget of virtual-machine steps ends loops, limits on cells and pages end floods, and nothing
outside the session's own database can be opened.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

MAX_QUERY_CHARS = 20_000
MAX_OUTPUT_CHARS = 800
_STEPS = 10_000
_MAX_STEPS = 50
"""Half a million steps in all, some hundredths of a second: more than a sensible query takes."""
_MAX_CELL_BYTES = 10_000
_MAX_PAGES = 2_500
_PRAGMAS = {"table_info", "table_list", "table_xinfo", "index_list", "index_info", "foreign_key_list"}
_FUNCTIONS = {"load_extension", "printf", "format"}
"""Refused. The last two can make a text of a billion characters before any limit applies."""

TOO_LONG = "stopped: the query takes too long"
Row = Sequence[Any]


@dataclass(frozen=True)
class Table:
    """`columns` are (name, type)."""

    name: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Any, ...], ...]

    def create(self, quote: str = '"', *, text: str = "") -> str:
        """text: appended to the type of a column of text."""
        kinds = ((name, kind if kind == "INTEGER" else f"{kind}{text}") for name, kind in self.columns)
        columns = ", ".join(f"{quoted(name, quote)} {kind}" for name, kind in kinds)
        return f"CREATE TABLE {quoted(self.name, quote)} ({columns})"

    def plain(self) -> dict[str, Any]:
        return {"name": self.name, "columns": [list(c) for c in self.columns], "rows": [list(row) for row in self.rows]}


class QueryRefused(Exception):
    """The database refused a query; the message, one line, is shown to the model."""


class SqliteStore:
    def __init__(self, tables: Sequence[Table]) -> None:
        # calls come from different threads, but one at a time
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        for table in tables:
            self._connection.execute(table.create(text=" COLLATE NOCASE"))  # as MySQL and MariaDB compare
            marks = ", ".join("?" * len(table.columns))
            self._connection.executemany(f"INSERT INTO {quoted(table.name)} VALUES ({marks})", table.rows)
        self._connection.execute(f"PRAGMA max_page_count = {_MAX_PAGES}")
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_CELL_BYTES + MAX_QUERY_CHARS)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 200)
        self._connection.set_authorizer(_authorise)
        self._connection.set_progress_handler(self._spend, _STEPS)
        self._spent = 0

    def execute(self, query: str) -> str:
        """The text that the model is shown; raises QueryRefused."""
        self._spent = 0
        try:
            with closing(self._connection.execute(query)) as cursor:
                if cursor.description is None:
                    return written(cursor.rowcount)
                return shown([column[0] for column in cursor.description], cursor)
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
            raise QueryRefused(TOO_LONG if self._spent > _MAX_STEPS else one_line(str(error))) from None

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """All rows of a trusted query."""
        self._spent = 0
        return self._connection.execute(sql).fetchall()

    def rows(self, table: str) -> list[tuple[Any, ...]] | None:
        """All rows of a table; None if it does not exist any more."""
        try:
            return self.query(f"SELECT * FROM {quoted(table)}")
        except sqlite3.Error:
            return None

    def close(self) -> None:
        self._connection.close()

    def _spend(self) -> int:
        self._spent += 1
        return int(self._spent > _MAX_STEPS)


def shown(columns: Sequence[str], rows: Iterable[Row]) -> str:
    """Column names and rows, a line each, cut at MAX_OUTPUT_CHARS; rows beyond are not fetched."""
    lines, length = [" | ".join(columns)], 0
    for row in rows:
        lines.append(" | ".join("NULL" if cell is None else str(cell) for cell in row))
        length += len(lines[-1]) + 1
        if length > MAX_OUTPUT_CHARS:
            break
    text = "\n".join(lines if len(lines) > 1 else [*lines, "(no rows)"])
    return text if len(text) <= MAX_OUTPUT_CHARS else text[:MAX_OUTPUT_CHARS] + "\n[TRUNCATED]"


def written(count: int) -> str:
    return f"ok, {count} rows changed" if count >= 0 else "ok"


def one_line(text: str) -> str:
    return " ".join(text.split())[:200]


def quoted(name: str, quote: str = '"') -> str:
    return f"{quote}{name.replace(quote, quote * 2)}{quote}"


def _authorise(action: int, first: str | None, second: str | None, *_: Any) -> int:
    outside = action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_CREATE_VTABLE)
    setting = action == sqlite3.SQLITE_PRAGMA and first not in _PRAGMAS
    harmful = action == sqlite3.SQLITE_FUNCTION and second in _FUNCTIONS
    return sqlite3.SQLITE_DENY if outside or setting or harmful else sqlite3.SQLITE_OK
