"""A process that a run keeps: started, watched, started again when it dies. Promise: it ends with the run, and its last words are told.

Its output goes to a log file. `cli/attached.py` is what ends it when the run is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

MAX_RESTARTS, RESTARTS_S = 5, 600.0
"""A process that died more often than this in so many seconds is not started again."""
PAUSE_S = 0.2
STOP_S = 5.0
"""From SIGTERM to SIGKILL."""
LAST_LINES = 20


class Child:
    def __init__(self, name: str, *arguments: str, log: Path, environ: Mapping[str, str]) -> None:
        """`ludus ARGUMENTS` with these environment variables beside our own."""
        self.name, self.arguments, self.log = name, arguments, log
        self.given_up = ""
        """Why it is not started again; empty while it is kept."""
        self.num_restarts = 0
        self._environ = {**os.environ, **environ}
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._began = 0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process is None or self._process.returncode is not None

    async def start(self) -> None:
        with self.log.open("ab") as log:
            self._began = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "ludus.cli.attached", *self.arguments,
                stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log, env=self._environ,
                start_new_session=True,  # a Ctrl-C is for the run, which finishes its step with these still here
            )  # fmt: skip

    def keep(self) -> None:
        """From here on it is started again when it dies."""
        self._keeping = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        if self._process is None or self.given_up:  # it was buried, and its number may be somebody else's by now
            return
        self._signal(signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._process.wait()
        self._signal(signal.SIGKILL, group=True)
        await self._process.wait()

    def said(self) -> str:
        """What the process that runs now, or ran last, wrote so far."""
        with self.log.open("rb") as log:
            log.seek(self._began)
            return log.read().decode(errors="replace")

    def last_words(self) -> str:
        """How it ended and what it said last, for a message."""
        code = None if self._process is None else self._process.returncode
        how = "is still running" if code is None else how_ended(code)
        lines = self.said().strip().splitlines()[-LAST_LINES:]
        return "\n  ".join(
            [f"{self.name} {how}" + (f"; it said last ({self.log}):" if lines else " and said nothing"), *lines]
        )

    async def _keep(self) -> None:
        deaths: deque[float] = deque(maxlen=MAX_RESTARTS)
        now = asyncio.get_running_loop().time
        while True:
            assert self._process is not None
            await self._process.wait()
            self._signal(signal.SIGKILL, group=True)  # what it has started itself
            if len(deaths) == MAX_RESTARTS and now() - deaths[0] < RESTARTS_S:
                self.given_up = f"it died {MAX_RESTARTS + 1} times within {RESTARTS_S:g} s. {self.last_words()}"
                return
            deaths.append(now())
            await asyncio.sleep(PAUSE_S)
            self.num_restarts += 1
            await self.start()

    def _signal(self, number: int, *, group: bool = False) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number) if group else os.kill(self.pid, number)


def how_ended(code: int) -> str:
    return f"ended with status {code}" if code >= 0 else f"was killed by signal {-code}"
