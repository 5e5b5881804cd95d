"""What controller and worker processes share: event loop, time limits, tasks, logs, messages.

    {"time": "2027-01-31T12:00:00.123Z", "level": "info", "event": "worker lost", "worker": "w1"}

Promise: each log line is one event, its facts are fields, and none of them is a secret.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TextIO

from ludus.errors import nearest

Clocks = set[asyncio.Timeout]
_log = logging.getLogger(__name__)


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": when, "level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, "facts", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log(logger: logging.Logger, event: str, *, level: int = logging.INFO, **facts: Any) -> None:
    logger.log(level, event, extra={"facts": facts})


def log_json_lines(*, level: int = logging.INFO, to: TextIO | None = None) -> None:
    """Writes all log records of this process as JSON lines, to stderr by default."""
    handler = logging.StreamHandler(to or sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)


def event_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The loop factory of uvloop, or None where it is not installed."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def not_found(what: str, name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    return f"{what}.{nearest(name, names)} Known: {', '.join(names) or 'none'}."


class within:  # noqa: N801
    """Like asyncio.timeout, but raises the error that `late` returns. Its clock is in `clocks`
    until it ends, so that `expire` can end it early. A class, because every turn of every session
    comes through here and an async generator costs several times as much."""

    __slots__ = ("_clock", "_clocks", "_late")

    def __init__(self, limit_s: float, late: Callable[[], Exception], *, clocks: Clocks | None = None) -> None:
        self._clock, self._late = asyncio.timeout(limit_s), late
        self._clocks = set() if clocks is None else clocks

    async def __aenter__(self) -> None:
        self._clocks.add(self._clock)
        await self._clock.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        try:
            await self._clock.__aexit__(*error)
        except TimeoutError:
            raise self._late() from None
        finally:
            self._clocks.discard(self._clock)


@asynccontextmanager
async def first_of(*work: Awaitable[Any], limit_s: float | None = None) -> AsyncIterator[Sequence[asyncio.Future[Any]]]:
    """Begins all of `work` and waits until some of it is done; the block cancels the rest."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.wait(tasks, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def expire(clocks: Clocks) -> None:
    now = asyncio.get_running_loop().time()
    for clock in clocks:
        if not clock.expired():
            clock.reschedule(now)


class Background:
    """Tasks that need not be awaited. Their failures are logged."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def cancel(self) -> None:
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a background task failed", exc_info=error)
