"""Processes that this one starts, watches, ends and explains. Promise: when this process is gone,
however it ended, so are they and all they started; a process id that may have been reused is never
signalled.

Each has a session and process group of its own: a Ctrl-C is for this process alone, and what a
process has started is killed with it. A shell waits at a pipe that only this process holds:
`kill -9` closes it too, and then the shell kills the groups it knows. The child's side is
parent.py.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ludus.wire.connection import Connection, Handler
from ludus.wire.stream import StreamTransport

STOP_S = 5.0
"""From asking a process to end until it is killed."""
MAX_RESTARTS, RESTARTS_S = 5, 600.0
"""A process that ends more often than this within so many seconds is not restarted again."""
PAUSE_S = 0.2
"""Before a restart."""
LAST_LINES = 20
_POLL_S = 0.02
_UNREAD_S = 1.0
"""For what a process that has ended still sent."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_KILL_GROUPS_AT_END = """
exec > /dev/null 2>&1
groups=' '
while read -r sign group; do
  case $sign in
    +) groups="$groups$group " ;;
    -) groups="${groups%% $group *} ${groups#* $group }" ;;
  esac
done
for group in $groups; do kill -s KILL -- "-$group"; done
"""


class Supervisor:
    """Knows the process groups that must not be left behind."""

    def __init__(self) -> None:
        self._shell: subprocess.Popen[bytes] | None = None
        self._groups: set[int] = set()

    def add(self, group: int) -> None:
        if self._shell is None or self._shell.poll() is not None:
            command = ["/bin/sh", "-c", _KILL_GROUPS_AT_END]
            self._shell = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
            for known in self._groups:
                self._tell("+", known)
        self._groups.add(group)
        self._tell("+", group)

    def kill(self, group: int) -> None:
        """Kills and forgets the group. A forgotten one, whose id may be reused, is left alone."""
        if group not in self._groups:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
        self._groups.discard(group)
        self._tell("-", group)

    def close(self) -> None:
        """Kills whatever still runs."""
        for group in list(self._groups):
            self.kill(group)
        if self._shell is not None:
            self._shell.communicate()
            self._shell = None

    def _tell(self, sign: str, group: int) -> None:
        assert self._shell is not None
        assert self._shell.stdin is not None
        with suppress(BrokenPipeError):  # somebody killed it; the next `add` starts another
            self._shell.stdin.write(f"{sign} {group}\n".encode())
            self._shell.stdin.flush()


@dataclass(eq=False)
class Process:
    """`command` with `environ` beside our own variables. Its output goes to `log`, if there is
    one. With `handlers`, even none, it gets a connection: see parent.py."""

    supervisor: Supervisor
    name: str
    command: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)
    log: Path | None = None
    handlers: Mapping[str, Handler] | None = None
    connection: Connection | None = field(default=None, init=False)
    num_restarts: int = field(default=0, init=False)
    given_up: str = field(default="", init=False)
    """Why it is not restarted any more."""
    _reason: str = field(default="", init=False)
    """Why we killed it, if we did."""
    _popen: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _running: asyncio.Task[str] | None = field(default=None, init=False)
    _keeping: asyncio.Task[None] | None = field(default=None, init=False)
    _log_start: int = field(default=0, init=False)

    @property
    def pid(self) -> int:
        return self._popen.pid if self._popen else 0

    @property
    def returncode(self) -> int | None:
        """None while it runs. The group is killed as soon as its leader is known to have ended."""
        if self._popen is None or (code := self._popen.poll()) is None:
            return None
        self.supervisor.kill(self.pid)
        if self._popen.stdin is not None:
            self._popen.stdin.close()
        return code

    @property
    def alive(self) -> bool:
        """Neither ended nor killed nor cut off."""
        connected = self.connection is None or self.connection.alive
        return connected and not self._reason and self.returncode is None

    async def start(self) -> Self:
        if self.handlers is None:  # cli/attached.py ends when its standard input does
            self._spawn(self.command, stdin=subprocess.PIPE)
            return self
        ours, theirs = socket.socketpair()
        transport = await StreamTransport.over(ours)  # first: nothing is awaited once the process runs
        with theirs:
            try:
                arguments = (str(theirs.fileno()), str(os.getpid()))
                self._spawn(self.command + arguments, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
            except BaseException:
                await transport.close()
                raise
        self.connection = Connection(transport, handlers=self.handlers, peer=self.name)
        self._running = asyncio.create_task(self.connection.run())
        return self

    def keep_running(self) -> None:
        """From here on it is restarted when it ends."""
        self._keeping = asyncio.create_task(self._keep())

    async def wait(self) -> None:
        """Returns when it has ended, what it sent was read, and what it started was killed."""
        while self._popen is not None and self.returncode is None:
            await asyncio.sleep(_POLL_S)
        if self.connection is not None and self._running is not None:
            await asyncio.wait([self._running], timeout=_UNREAD_S)
            self._running.cancel()
            await self.connection.close()

    async def stop(self, *, grace_s: float = STOP_S) -> None:
        """Closes its connection, or sends SIGTERM if it has none, and kills it after `grace_s`."""
        if self._keeping is not None:
            self._keeping.cancel()
        if self.connection is not None:
            await self.connection.close()
        elif self._popen is not None and self.returncode is None:
            self._popen.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self.wait()
        self.kill(f"{self.name} was killed: it did not end within {grace_s:g} s")
        await self.wait()

    def kill(self, reason: str) -> None:
        """Kills it and all it started. `reason` explains its end, unless it has ended already."""
        if self._popen is not None and self.returncode is None:
            self._reason = self._reason or reason
            self.supervisor.kill(self.pid)

    def explain(self) -> str:
        """How it ended, with the last lines of its log."""
        code = self.returncode
        how = self._reason or f"{self.name} {'is still running' if code is None else how_ended(code)}"
        if self.log is None:
            return how
        lines = self.output().strip().splitlines()[-LAST_LINES:]
        return "\n  ".join([f"{how}. Last lines of {self.log}:", *lines]) if lines else f"{how}; {self.log} is empty"

    def output(self) -> str:
        """What it has written to its log since its last start."""
        assert self.log is not None
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def _spawn(self, command: tuple[str, ...], **options: Any) -> None:
        with nullcontext() if self.log is None else self.log.open("ab") as log:
            self._log_start = 0 if log is None else log.tell()
            environ = {**os.environ, **self.environ}
            self._popen = subprocess.Popen(
                command, stdout=log, stderr=log, env=environ, start_new_session=True, **options
            )
        self.supervisor.add(self.pid)

    async def _keep(self) -> None:
        ends: deque[float] = deque(maxlen=MAX_RESTARTS)
        now = asyncio.get_running_loop().time
        while True:
            await self.wait()
            if len(ends) == MAX_RESTARTS and now() - ends[0] < RESTARTS_S:
                self.given_up = f"it ended {MAX_RESTARTS + 1} times within {RESTARTS_S:g} s. {self.explain()}"
                return
            ends.append(now())
            await asyncio.sleep(PAUSE_S)
            self.num_restarts += 1
            await self.start()


def how_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = next((each.name for each in signal.Signals if each == -code), f"signal {-code}")
    return f"was killed by {name}" + (" (out of memory?)" if code == -signal.SIGKILL else "")


def memory_of(pid: int) -> int:
    """Resident bytes of a process and its descendants (Linux; elsewhere 0)."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = [
            int(word) for file in Path(f"/proc/{pid}/task").glob("*/children") for word in file.read_text().split()
        ]
    except (OSError, IndexError):  # gone meanwhile
        return 0
    return pages * _PAGE_BYTES + sum(memory_of(child) for child in children)
