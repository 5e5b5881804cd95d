"""What a restarted controller must know, in one SQLite file.

Promise: writing never delays a call, and a damaged file never stops the start. Changes gather in
memory; a thread writes them a few times a second. What a crash leaves unwritten is reported again
by the workers that return, so the file matters for those that do not.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import sqlite3
from pathlib import Path
from typing import Any

import msgspec

from ludus.controller.records import SessionSpec
from ludus.errors import ConfigError, ControllerFailed
from ludus.wire.codec import decode, encode

FILE = "controller.sqlite3"
EVERY_S = 0.2
_log = logging.getLogger(__name__)

_TABLES = """
create table if not exists sessions (session_id text primary key, worker_id text, spec blob) without rowid;
create table if not exists drained (worker_id text primary key) without rowid;
"""
_STATEMENTS = {
    "sessions": ("insert or replace into sessions values (?, ?, ?)", "delete from sessions where session_id = ?"),
    "drained": ("insert or ignore into drained values (?)", "delete from drained where worker_id = ?"),
}
sqlite3.register_adapter(SessionSpec, encode)
Placed = tuple[SessionSpec, str]
"""A session and the id of its worker."""


class Journal:
    """With an empty `folder` nothing is kept, as for controllers that a run starts for itself."""

    def __init__(self, folder: str = "") -> None:
        self._changes: dict[tuple[str, str], tuple[Any, ...] | None] = {}
        """By table and key: the row's other values, or None for a row that is deleted."""
        self._task: asyncio.Task[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._database = _opened(Path(folder)) if folder else None

    def load(self) -> tuple[list[Placed], set[str]]:
        """The sessions that were live and the workers that were drained."""
        if self._database is None:
            return [], set()
        drained = self._database.execute("select worker_id from drained")
        return _placed(self._database), {worker_id for (worker_id,) in drained}

    def put(self, spec: SessionSpec, *, worker_id: str) -> None:
        if self._database is not None:
            # a restart needs no task data: a worker that returns sends the whole spec
            bare = msgspec.structs.replace(spec, task=dataclasses.replace(spec.task, data={}))
            self._changes["sessions", spec.session_id] = worker_id, bare

    def drop(self, session_id: str) -> None:
        if self._database is not None:
            self._changes["sessions", session_id] = None

    def drain(self, worker_id: str, draining: bool) -> None:
        if self._database is not None:
            self._changes["drained", worker_id] = () if draining else None

    def begin(self) -> None:
        if self._database is not None:
            self._task = asyncio.create_task(self._write_for_ever())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._writing is not None:
            await self._writing
        if self._database is not None:
            self._write(self._changes)
            self._database.close()
            self._database = None

    async def _write_for_ever(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            if self._changes:
                changes, self._changes = self._changes, {}
                self._writing = asyncio.ensure_future(asyncio.to_thread(self._write, changes))
                await asyncio.shield(self._writing)  # `close` waits for it

    def _write(self, changes: dict[tuple[str, str], tuple[Any, ...] | None]) -> None:
        assert self._database is not None
        try:
            with self._database:
                for (table, key), row in changes.items():
                    insert, delete = _STATEMENTS[table]
                    self._database.execute(*((delete, (key,)) if row is None else (insert, (key, *row))))
        except sqlite3.Error as error:  # a full disk must not stop sessions
            _log.error("the controller's state could not be written: %s", error)


def _opened(folder: Path) -> sqlite3.Connection:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ControllerFailed(
            f"cannot create the state folder {folder}: {error}; choose another with --state"
        ) from None
    file = folder / FILE
    try:
        return _connected(file)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            if "locked" in str(error):
                raise ControllerFailed(
                    f"{file} is used by another controller; stop it, or choose another --state"
                ) from None
            if "unable to open" in str(error) or "readonly" in str(error):
                raise ControllerFailed(f"cannot open {file}: {error}; choose another folder with --state") from None
        _put_aside(file, error)
        return _connected(file)


def _connected(file: Path) -> sqlite3.Connection:
    if not file.exists():
        os.close(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600))  # it holds the sessions' keys
    database = sqlite3.connect(file, timeout=1.0, check_same_thread=False)
    try:
        database.execute("pragma locking_mode = exclusive")
        database.execute("pragma journal_mode = wal")
        database.execute("pragma synchronous = normal")
        database.executescript(_TABLES)
        (verdict,) = database.execute("pragma quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
        _placed(database)
    except BaseException:
        database.close()
        raise
    return database


def _placed(database: sqlite3.Connection) -> list[Placed]:
    try:
        rows = database.execute("select spec, worker_id from sessions")
        return [(decode(spec, SessionSpec), worker_id) for spec, worker_id in rows]
    except (ConfigError, TypeError) as error:
        raise sqlite3.DatabaseError(f"a session cannot be read: {error}") from None


def _put_aside(file: Path, error: sqlite3.Error) -> None:
    aside = next(path for n in range(1, 10_000) if not (path := file.with_name(f"{FILE}.damaged-{n}")).exists())
    file.rename(aside)
    for other in (f"{FILE}-wal", f"{FILE}-shm"):
        file.with_name(other).unlink(missing_ok=True)
    _log.warning(
        "%s is damaged (%s); it was put aside as %s. Starting without it: sessions whose workers return continue, "
        "drained workers must be drained again.",
        file,
        error,
        aside.name,
    )
