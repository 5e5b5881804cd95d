"""Sessions that have a process to themselves, from a pool. Promise: whatever happens in a pen, only its own session notices.

    open ──▶ idle pen, or a new one ──▶ session ──close──▶ idle again, while it is young and small; else it is killed and replaced
                                           └── a call that nobody waits for any more, or too much memory ──▶ killed

A pen that waits warm saves the start of an interpreter and the imports of the environment, half a second at least.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ludus.environments.environment import Environment
from ludus.environments.needs import needs_of
from ludus.environments.registry import search_path, source_of
from ludus.errors import (
    ConfigError,
    ControllerFailed,
    EnvironmentFailed,
    LudusError,
    TurnTimeout,
    WorkerLost,
    border,
    describe,
)
from ludus.hosting.host import CLOSE_S, Player, draw_player
from ludus.hosting.session_process import OpenTask, Propose, Spec, StreamTransport
from ludus.processes.supervisor import Supervisor, memory_of, obituary
from ludus.types import Action, Observation, Task
from ludus.wire.connection import Connection

START_S = 60.0
"""How long a new process may take to import its environment."""
_LOOK_S = 1.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolLimits:
    max_pens: int = 64
    """Processes at once; sessions beyond wait."""
    max_sessions: int = 100
    """A pen is replaced after so many."""
    max_bytes: int = 2**30
    """A pen that holds more after a session is replaced; one that holds twice as much is killed in the middle of it."""
    num_warm: int = 1
    """Idle pens kept ready for each environment."""


class ProcessPool:
    """The pool, for all environments of this process that ask for isolation."""

    def __init__(self, environments: Iterable[Environment] = (), *, limits: PoolLimits | None = None) -> None:
        self.limits = limits or PoolLimits()
        self._specs = {environment.name: spec_of(environment) for environment in environments}
        self._room: asyncio.Semaphore | None = None
        self._idle: dict[str, list[SessionProcess]] = {name: [] for name in self._specs}
        self._all: set[SessionProcess] = set()
        self._keeper = Supervisor()
        self._helpers: set[asyncio.Task[None]] = set()
        self._dying: set[asyncio.Task[str]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def num_pens(self) -> int:
        return len(self._all)

    async def prepare(self) -> None:
        """Waits until every environment has a warm pen, so that what cannot be imported fails at start."""
        await asyncio.gather(*(self._warm_up(name) for name in self._specs))

    async def tasks(self, environment: str, split: str) -> list[Task]:
        async with self._lent(environment) as pen:
            return list(
                await pen.call("tasks", split, answer=tuple[Task, ...], where=f"{environment}: tasks({split!r})")
            )

    async def open(self, task: Task, *, seed: int, timeout_s: float, label: str = "") -> IsolatedSession:
        """Waits for room; only then does the clock of `timeout_s` run."""
        pen = await self._take(task.environment)
        try:
            async with asyncio.timeout(timeout_s):
                await pen.call("open", OpenTask(task, seed, label), where=f"{task.id}: open")
        except TimeoutError:
            self._give_back(pen)
            raise TurnTimeout(f"{task.id}: open exceeded {timeout_s:g} s") from None
        except BaseException:
            pen.kill("opening a session failed there")  # who knows what is left of it
            self._give_back(pen)
            raise
        return IsolatedSession(pen, pens=self, task=task)

    async def close(self) -> None:
        self._closed = True
        for task in (*self._helpers, *filter(None, [self._watching])):
            task.cancel()
        for pen in list(self._all):
            self._retire(pen, "its pool was closed, and its process killed")
        await asyncio.gather(*self._dying)
        self._keeper.close()

    # ------------------------------------------------------------------------------------------------ the pool

    @asynccontextmanager
    async def _lent(self, name: str) -> AsyncIterator[SessionProcess]:
        pen = await self._take(name)
        try:
            yield pen
        finally:
            self._give_back(pen)

    async def _take(self, name: str) -> SessionProcess:
        self._room = self._room or asyncio.Semaphore(self.limits.max_pens)
        await self._room.acquire()
        try:
            while self._idle[name]:
                pen = self._idle[name].pop()
                if pen.alive:
                    break
                self._retire(pen, "it died while idle")
            else:
                pen = await self._start(name)
        except BaseException:
            self._room.release()
            raise
        pen.num_sessions += 1
        self._warm_up_soon(name)
        return pen

    def _give_back(self, pen: SessionProcess) -> None:
        assert self._room is not None
        self._room.release()
        too_old = pen.num_sessions >= self.limits.max_sessions
        if self._closed or not pen.alive or too_old or memory_of(pen.pid) > self.limits.max_bytes:
            self._retire(pen, "its process was replaced")
            self._warm_up_soon(pen.name)
        else:
            self._idle[pen.name].append(pen)

    async def _start(self, name: str) -> SessionProcess:
        while len(self._all) >= self.limits.max_pens and (idle := next(filter(None, self._idle.values()), None)):
            self._retire(idle.pop(0), "another environment needed its place")
        pen = SessionProcess(self._specs[name], keeper=self._keeper)
        self._all.add(pen)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        try:
            await pen.start()
        except BaseException:
            self._retire(pen, "its process could not be started")
            raise
        return pen

    def _retire(self, pen: SessionProcess, reason: str) -> None:
        pen.kill(reason)
        self._all.discard(pen)
        dying = asyncio.ensure_future(pen.gone())
        self._dying.add(dying)
        dying.add_done_callback(self._dying.discard)

    def _warm_up_soon(self, name: str) -> None:
        if self._closed or len(self._idle[name]) >= self.limits.num_warm or len(self._all) >= self.limits.max_pens:
            return
        helper = asyncio.create_task(self._try_to_warm_up(name))
        self._helpers.add(helper)
        helper.add_done_callback(self._helpers.discard)

    async def _try_to_warm_up(self, name: str) -> None:
        try:
            await self._warm_up(name)
        except LudusError as error:  # the next open meets it too, and says so to its caller
            _log.warning("no process could be kept ready for %s: %s", name, error)

    async def _warm_up(self, name: str) -> None:
        starting = sum(pen.name == name and pen.link is None for pen in self._all)
        for _ in range(self.limits.num_warm - len(self._idle[name]) - starting):
            if len(self._all) < self.limits.max_pens:
                self._idle[name].append(await self._start(name))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            for pen in [pen for pen in self._all if pen.alive]:
                held = memory_of(pen.pid)
                if held > 2 * self.limits.max_bytes:
                    pen.kill(f"its process held {held / 2**20:.0f} MiB, twice what a pen may hold, and was killed")


class SessionProcess:
    """A process, and the link to it."""

    def __init__(self, spec: Spec, *, keeper: Supervisor) -> None:
        self.name = spec.name
        self.num_sessions = 0
        self.link: Connection | None = None
        self.reason = ""
        """Why we killed it, if we did."""
        self._spec, self._keeper = spec, keeper
        self._process: subprocess.Popen[bytes] | None = None
        self._running: asyncio.Task[str] | None = None

    @property
    def alive(self) -> bool:
        return self.link is not None and self.link.alive and not self.reason

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    async def start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs, border(EnvironmentFailed, f"{self.name}: no process could be started"):
            command = [sys.executable, "-m", "ludus.hosting.session_process", str(theirs.fileno()), str(os.getpid())]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": search_path()},
                start_new_session=True,  # its own group: what the author's code starts is killed with it
            )
        self._keeper.add(self._process.pid)
        connection = StreamTransport(*await asyncio.open_connection(sock=ours))
        link = Connection(connection, peer=f"the process of {self.name}")
        self._running = asyncio.create_task(link.run())
        try:
            async with asyncio.timeout(START_S):
                await link.call("make", self._spec)
        except TimeoutError:
            raise EnvironmentFailed(f"{self.name}: its process was not ready within {START_S:g} s") from None
        except WorkerLost:
            raise EnvironmentFailed(
                f"{self.name}: could not be made in a process of its own: {await self.gone()}"
            ) from None
        self.link = link

    async def call(self, name: str, body: Any = None, *, answer: Any = None, where: str) -> Any:
        """What goes wrong there is the environment's failure. A cancelled caller kills the pen: nothing else stops it for sure."""
        assert self.link is not None
        try:
            return await self.link.call(name, body, answer=answer)
        except asyncio.CancelledError:
            self.kill(f"{where} was given up, and its process killed")
            raise
        except WorkerLost:
            raise EnvironmentFailed(f"{where}: {await self.gone()}") from None
        except ControllerFailed as error:
            raise EnvironmentFailed(f"{where}: {error}") from None

    def kill(self, reason: str) -> None:
        self.reason = self.reason or reason
        if self._process is not None:
            self._keeper.kill(self._process.pid)

    async def gone(self) -> str:
        """Waits for the end of a process that is dead or dying, and says how it died."""
        if self._process is not None:
            for _ in range(200):
                if self._process.poll() is not None:
                    break
                await asyncio.sleep(0.01)
            self._keeper.kill(self._process.pid)  # what it may have left behind
        if self._running is not None:
            self._running.cancel()
        return self.reason or obituary(self._process.poll() if self._process else None)


class IsolatedSession:
    """A live session in a pen, as a client sees it."""

    def __init__(self, pen: SessionProcess, *, pens: ProcessPool, task: Task) -> None:
        self._pen, self._pens, self._task = pen, pens, task
        self._closing: asyncio.Future[None] | None = None

    async def start(self) -> Observation:
        observation: Observation = await self._call("start", answer=Observation)
        return observation

    async def act(self, action: Action) -> Observation:
        observation: Observation = await self._call("act", action, answer=Observation)
        return observation

    async def solve(self, *, mistakes: float = 0.0, rng: random.Random) -> Action:
        player, seed = draw_player(mistakes=mistakes, rng=rng)
        return await self.propose(player, seed=seed)

    async def propose(self, player: Player, *, seed: int) -> Action:
        action: Action = await self._call("propose", Propose(player, seed), answer=Action)
        return action

    async def close(self) -> None:
        """Returns within CLOSE_S and never raises; a caller that is cancelled meanwhile does not stop it."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            if self._pen.alive:
                async with asyncio.timeout(CLOSE_S + 1):  # it keeps CLOSE_S itself, unless it hangs altogether
                    await self._call("close")
        except (LudusError, TimeoutError) as error:
            _log.warning("%s: close: %s", self._task.id, describe(error))
        finally:
            self._pens._give_back(self._pen)

    async def _call(self, name: str, body: Any = None, *, answer: Any = None) -> Any:
        return await self._pen.call(name, body, answer=answer, where=f"{self._task.id}: {name}")


def spec_of(environment: Environment) -> Spec:
    source, options = source_of(environment), dict(environment.options)
    try:
        json.dumps(options, allow_nan=False)
    except (TypeError, ValueError):
        source = ""
    if not source:
        raise ConfigError(
            f'environment {environment.name!r} asks for isolation = "process", and another process cannot make it: '
            "define its class at the top of a module, with options that are plain data"
        )
    needs = needs_of(environment)
    if not needs.hosted_sandbox:
        return Spec(environment.name, source, options)
    return Spec(environment.name, source, options, sandbox=needs.kind, image=needs.image)
