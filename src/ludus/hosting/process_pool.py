"""Sessions with a process each, from a pool. Promise: a failure in one affects its session only.

    open ──▶ idle or new process ──▶ session ──close──▶ idle, while young and small; else replaced
                                        └── a cancelled call, or too much memory ──▶ killed

A warm process saves the start of an interpreter and the imports, half a second at least.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from ludus import errors
from ludus.environments.environment import Environment
from ludus.environments.needs import needs_of
from ludus.environments.registry import search_path, source_of
from ludus.errors import ConfigError, ControllerFailed, EnvironmentFailed, LudusError, TurnTimeout, WorkerLost
from ludus.hosting.answers import serialisable
from ludus.hosting.host import CLOSE_S, ClosableSession, Player
from ludus.hosting.session_process import EnvironmentSpec, OpenTask, Propose
from ludus.processes.supervisor import Process, Supervisor, memory_of
from ludus.types import Action, Observation, Task

START_S = 60.0
"""How long a new process may take to import its environment."""
_LOOK_S = 1.0
"""Between two looks at the memory of all processes."""
_END_S = 2.0
"""From the end of the connection to the end of the process."""
_COMMAND = (sys.executable, "-m", "ludus.hosting.session_process")
_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PoolLimits:
    max_processes: int = 64
    """Sessions beyond this number wait."""
    max_sessions: int = 100
    """A process is replaced after this number of sessions."""
    max_bytes: int = 2**30
    """A process with more is replaced after its session; one with twice as much is killed."""
    num_warm: int = 1
    """Idle processes kept ready for each environment."""


class ProcessPool:
    """Session processes for all environments that ask for isolation."""

    def __init__(self, environments: Iterable[Environment] = (), *, limits: PoolLimits | None = None) -> None:
        self.limits = limits or PoolLimits()
        self._specs = {environment.name: spec_of(environment) for environment in environments}
        self._room: asyncio.Semaphore | None = None
        self._idle: dict[str, list[SessionProcess]] = {name: [] for name in self._specs}
        self._all: set[SessionProcess] = set()
        self._supervisor = Supervisor()
        self._warming: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[str]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._closed = False

    async def prepare(self) -> None:
        """Starts a warm process for every environment; one that cannot be imported fails here."""
        await asyncio.gather(*(self._warm_up(name) for name in self._specs))

    async def tasks(self, environment: str, split: str) -> list[Task]:
        process, where = await self._take(environment), f"{environment}: tasks({split!r})"
        try:
            return list(await process.call("tasks", split, answer=tuple[Task, ...], where=where))
        finally:
            self.give_back(process)

    async def open(self, task: Task, *, seed: int, timeout_s: float, label: str = "") -> IsolatedSession:
        """Waits for a free process; `timeout_s` counts from then."""
        process = await self._take(task.environment)
        try:
            async with asyncio.timeout(timeout_s):
                await process.call("open", OpenTask(task, seed, label), where=f"{task.id}: open")
        except TimeoutError:
            self.give_back(process)
            raise TurnTimeout(f"{task.id}: open exceeded {timeout_s:g} s") from None
        except BaseException:
            process.kill("opening a session failed there")  # its state is unknown
            self.give_back(process)
            raise
        return IsolatedSession(process, pool=self, task=task)

    async def close(self) -> None:
        self._closed = True
        for task in (*self._warming, *filter(None, [self._watching])):
            task.cancel()
        for process in list(self._all):
            self._retire(process, "its pool was closed, and its process killed")
        await asyncio.gather(*self._ending)
        self._supervisor.close()

    def give_back(self, process: SessionProcess) -> None:
        """Its session is over: it becomes idle, or is replaced."""
        assert self._room is not None
        self._room.release()
        too_old = process.num_sessions >= self.limits.max_sessions
        if self._closed or not process.alive or too_old or memory_of(process.pid) > self.limits.max_bytes:
            self._retire(process, "its process was replaced")
            self._warm_up_soon(process.spec.name)
        else:
            self._idle[process.spec.name].append(process)

    async def _take(self, name: str) -> SessionProcess:
        self._room = self._room or asyncio.Semaphore(self.limits.max_processes)
        await self._room.acquire()
        try:
            while self._idle[name]:
                process = self._idle[name].pop()
                if process.alive:
                    break
                self._retire(process, "it died while idle")
            else:
                process = await self._start(name)
        except BaseException:
            self._room.release()
            raise
        process.num_sessions += 1
        self._warm_up_soon(name)
        return process

    async def _start(self, name: str) -> SessionProcess:
        while len(self._all) >= self.limits.max_processes and (idle := next(filter(None, self._idle.values()), None)):
            self._retire(idle.pop(0), "another environment needed its place")
        environ, spec = {"PYTHONPATH": search_path()}, self._specs[name]
        process = SessionProcess(self._supervisor, "its process", _COMMAND, environ, handlers={}, spec=spec)
        self._all.add(process)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        try:
            return await process.start()
        except BaseException:
            self._retire(process, "its process could not be started")
            raise

    def _retire(self, process: SessionProcess, reason: str) -> None:
        process.kill(reason)
        self._all.discard(process)
        ending = asyncio.ensure_future(process.ended())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    def _warm_up_soon(self, name: str) -> None:
        if not self._closed and len(self._idle[name]) < self.limits.num_warm:
            warming = asyncio.create_task(self._try_to_warm_up(name))
            self._warming.add(warming)
            warming.add_done_callback(self._warming.discard)

    async def _try_to_warm_up(self, name: str) -> None:
        try:
            await self._warm_up(name)
        except LudusError as error:  # the next open fails in the same way, and its caller learns of it
            _log.warning("no process could be kept ready for %s: %s", name, error)

    async def _warm_up(self, name: str) -> None:
        starting = sum(process.spec.name == name and not process.ready for process in self._all)
        for _ in range(self.limits.num_warm - len(self._idle[name]) - starting):
            if len(self._all) < self.limits.max_processes:
                self._idle[name].append(await self._start(name))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            for process in [each for each in self._all if each.alive]:
                held = memory_of(process.pid)
                if held > 2 * self.limits.max_bytes:
                    process.kill(f"its process held {held / 2**20:.0f} MiB, twice its limit, and was killed")


@dataclass(eq=False)
class SessionProcess(Process):
    """A process of the pool; `ready` when it has made its environment."""

    spec: EnvironmentSpec = field(kw_only=True)
    num_sessions: int = 0
    ready: bool = False

    async def start(self) -> Self:
        with errors.border(EnvironmentFailed, f"{self.spec.name}: no process could be started"):
            await super().start()
        assert self.connection is not None
        try:
            async with asyncio.timeout(START_S):
                await self.connection.call("make", self.spec)
        except TimeoutError:
            raise EnvironmentFailed(f"{self.spec.name}: its process was not ready within {START_S:g} s") from None
        except WorkerLost:
            how = await self.ended()
            raise EnvironmentFailed(f"{self.spec.name}: could not be made in a process of its own: {how}") from None
        self.ready = True
        return self

    async def call(self, name: str, body: Any = None, *, answer: Any = None, where: str) -> Any:
        """Any failure is EnvironmentFailed. A cancelled caller kills the process: it may hang."""
        assert self.connection is not None
        try:
            return await self.connection.call(name, body, answer=answer)
        except asyncio.CancelledError:
            self.kill(f"{where} was given up, and its process killed")
            raise
        except WorkerLost:
            raise EnvironmentFailed(f"{where}: {await self.ended()}") from None
        except ControllerFailed as error:
            raise EnvironmentFailed(f"{where}: {error}") from None

    async def ended(self) -> str:
        """Waits for the end of a process that is dead or dying, and returns how it ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await self.wait()
        self.kill("its process closed the connection")
        return self.explain()


class IsolatedSession(ClosableSession):
    def __init__(self, process: SessionProcess, *, pool: ProcessPool, task: Task) -> None:
        self._process, self._pool, self._task = process, pool, task

    async def start(self) -> Observation:
        return await self._call("start", answer=Observation)

    async def act(self, action: Action) -> Observation:
        return await self._call("act", action, answer=Observation)

    async def propose(self, player: Player, *, seed: int) -> Action:
        return await self._call("propose", Propose(player, seed), answer=Action)

    async def _close(self) -> None:
        try:
            if self._process.alive:
                async with asyncio.timeout(CLOSE_S + 1):  # the process keeps CLOSE_S itself, unless it hangs
                    await self._call("close")
        except (LudusError, TimeoutError) as error:
            _log.warning("%s: close: %s", self._task.id, errors.describe(error))
        finally:
            self._pool.give_back(self._process)

    async def _call(self, name: str, body: Any = None, *, answer: type[T] | None = None) -> T:
        value: T = await self._process.call(name, body, answer=answer, where=f"{self._task.id}: {name}")
        return value


def spec_of(environment: Environment) -> EnvironmentSpec:
    source, options = source_of(environment), dict(environment.options)
    if not source or not serialisable(options):
        raise ConfigError(
            f'environment {environment.name!r} asks for isolation = "process", and another process cannot make it: '
            "define its class at the top of a module, with options that are plain data"
        )
    needs = needs_of(environment)
    if not needs.hosted_sandbox:
        return EnvironmentSpec(environment.name, source, options)
    return EnvironmentSpec(environment.name, source, options, sandbox=needs.kind, image=needs.image)
