"""What a restarted controller must know, in one SQLite file. Promise: writing never delays a call, a damaged file never stops the start.

Changes gather in memory and are written together, a few times a second, by a thread. What the last moment before a crash left unwritten is
told again by the workers when they return: the file matters for those that do not.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from pathlib import Path
from typing import NamedTuple

from ludus.controller.service.waiting import Ask
from ludus.errors import ControllerFailed

FILE = "controller.sqlite3"
EVERY_S = 0.2
_log = logging.getLogger(__name__)

_TABLES = """
create table if not exists sessions (
  session_id text primary key, key text, client text, request_id text, environment text, split text, task_id text,
  worker_id text, lease_s real, timeout_s real
) without rowid;
create table if not exists drained (worker_id text primary key) without rowid;
"""


class Row(NamedTuple):
    """A live session."""

    session_id: str
    key: str
    client: str
    request_id: str
    environment: str
    split: str
    task_id: str
    worker_id: str
    lease_s: float
    timeout_s: float

    @classmethod
    def of(cls, ask: Ask, *, worker_id: str) -> Row:
        return cls(worker_id=worker_id, **{name: getattr(ask, name) for name in cls._fields if name != "worker_id"})

    @property
    def ask(self) -> Ask:
        return Ask(deadline=0.0, **{name: value for name, value in self._asdict().items() if name != "worker_id"})


class Journal:
    """`folder` empty: nothing is kept, for tests and for controllers that a run starts for itself."""

    def __init__(self, folder: str = "") -> None:
        self._sessions: dict[str, Row | None] = {}
        self._drained: dict[str, bool] = {}
        self._task: asyncio.Task[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._database = _opened(Path(folder)) if folder else None

    def load(self) -> tuple[list[Row], set[str]]:
        """The sessions that were live and the workers that were drained."""
        if self._database is None:
            return [], set()
        rows = [Row(*values) for values in self._database.execute(f"select {', '.join(Row._fields)} from sessions")]
        return rows, {worker_id for (worker_id,) in self._database.execute("select worker_id from drained")}

    def put(self, row: Row) -> None:
        if self._database is not None:
            self._sessions[row.session_id] = row

    def drop(self, session_id: str) -> None:
        if self._database is not None:
            self._sessions[session_id] = None

    def drain(self, worker_id: str, draining: bool) -> None:
        if self._database is not None:
            self._drained[worker_id] = draining

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
            self._write(*self._taken())
            self._database.close()
            self._database = None

    async def _write_for_ever(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            if self._sessions or self._drained:
                self._writing = asyncio.ensure_future(asyncio.to_thread(self._write, *self._taken()))
                await asyncio.shield(self._writing)  # what was taken is written, also when the end comes meanwhile

    def _taken(self) -> tuple[dict[str, Row | None], dict[str, bool]]:
        taken = self._sessions, self._drained
        self._sessions, self._drained = {}, {}
        return taken

    def _write(self, sessions: dict[str, Row | None], drained: dict[str, bool]) -> None:
        assert self._database is not None
        live = [row for row in sessions.values() if row is not None]
        over = [(session_id,) for session_id, row in sessions.items() if row is None]
        marks = ", ".join("?" * len(Row._fields))
        try:
            with self._database:
                self._database.executemany(f"insert or replace into sessions values ({marks})", live)
                self._database.executemany("delete from sessions where session_id = ?", over)
                self._database.executemany(
                    "insert or ignore into drained values (?)", [(w,) for w, d in drained.items() if d]
                )
                self._database.executemany(
                    "delete from drained where worker_id = ?", [(w,) for w, d in drained.items() if not d]
                )
        except (
            sqlite3.Error
        ) as error:  # a full disk must not stop sessions: workers tell what they host after a restart
            _log.error("the controller's state could not be written: %s", error)


def _opened(folder: Path) -> sqlite3.Connection:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ControllerFailed(
            f"the state folder {folder} cannot be made: {error}; choose another with --state"
        ) from None
    file = folder / FILE
    try:
        return _connected(file)
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise ControllerFailed(
                f"{file} is used by another controller; stop it, or choose another --state"
            ) from None
        if "unable to open" in str(error) or "readonly" in str(error):
            raise ControllerFailed(f"{file} cannot be opened: {error}; choose another folder with --state") from None
        return _connected(_put_aside(file, error))
    except sqlite3.DatabaseError as error:
        return _connected(_put_aside(file, error))


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
        database.execute(f"select {', '.join(Row._fields)} from sessions limit 1").fetchone()
    except BaseException:
        database.close()
        raise
    return database


def _put_aside(file: Path, error: sqlite3.Error) -> Path:
    aside = next(path for n in range(1, 10_000) if not (path := file.with_name(f"{FILE}.damaged-{n}")).exists())
    file.rename(aside)
    for other in (f"{FILE}-wal", f"{FILE}-shm"):
        file.with_name(other).unlink(missing_ok=True)
    _log.warning(
        "%s is damaged (%s); it was put aside as %s. Starting without it: sessions whose workers return go on, drained workers "
        "must be drained again.",
        file,
        error,
        aside.name,
    )
    return file
