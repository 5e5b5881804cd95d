"""Workers as the controller calls them. Promise: every call ends, with an answer or a cause.

`Worker` is the interface of one worker, of any kind. `ConnectedWorker` is a Ludus worker behind the
connection that it opened. `WorkerCalls` makes the calls: when a worker's connection breaks, its
calls wait until it joins again and are repeated; when the worker is given up, they all end.

A third-party kind implements `Worker` (see agentrl/) and uses four methods of `server.Controller`:

    controller.join(worker, register)      it is here; joining again replaces the old object
    controller.heard(worker_id)            it is alive; after three silent heartbeats it is lost
    controller.ended(worker_id, Ended)     one of its sessions is over and the slot is free
    controller.lost(worker_id, reason)     it is gone; its sessions end as failed
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from ludus.controller.records import Act, AskTasks, Close, Drain, Renew, SessionSpec, Solve, Start
from ludus.controller.runtime import Clocks, expire, within
from ludus.errors import ControllerFailed, WorkerLost
from ludus.types import Action, Observation, Task
from ludus.wire.connection import Connection

T = TypeVar("T")


class Worker(Protocol):
    """Calls raise EnvironmentFailed (its code), WorkerLost (gone) or ControllerFailed (refused).

    A call that raised WorkerLost is repeated with the same ids once the worker has joined again: a
    repeated `open`, `start` or `act` must get the first one's answer, and not be executed twice."""

    id: str
    dialect: str
    """Either "ludus" or a third-party system, whose own routes may call `raw`."""
    keeps_leases: bool
    """True: it closes sessions that nobody renews. False: the controller does."""

    async def open(self, spec: SessionSpec) -> None:
        """Status 503 means that no slot is free: the session waits again, for any worker."""

    async def tasks(self, ask: AskTasks) -> tuple[Task, ...]: ...

    async def start(self, start: Start) -> Observation: ...

    async def act(self, act: Act) -> Observation: ...

    async def solve(self, solve: Solve) -> Action: ...

    async def close(self, close: Close) -> None:
        """Frees the session, whatever its code does. An unknown session counts as closed."""

    def renew(self, session_ids: Sequence[str]) -> None:
        """Renews the leases of these sessions without waiting for an answer."""
        return

    def drain(self, draining: bool) -> None:
        """Informs the worker. The controller places nothing on a drained worker anyway."""
        return

    def leave(self) -> None:
        """The controller has given it up as lost. A worker that is still alive may join again."""

    async def raw(self, session_id: str, *, call: str, body: bytes) -> bytes:
        """A call in the worker's own dialect, passed on unchanged so that no field is lost."""


class ConnectedWorker:
    dialect = "ludus"
    keeps_leases = True

    def __init__(self, worker_id: str, *, connection: Connection) -> None:
        self.id = worker_id
        self.connection = connection

    async def open(self, spec: SessionSpec) -> None:
        await self.connection.call("open", spec)

    async def tasks(self, ask: AskTasks) -> tuple[Task, ...]:
        return await self.connection.call("tasks", ask, answer=tuple[Task, ...])

    async def start(self, start: Start) -> Observation:
        return await self.connection.call("start", start, answer=Observation)

    async def act(self, act: Act) -> Observation:
        return await self.connection.call("act", act, answer=Observation)

    async def solve(self, solve: Solve) -> Action:
        return await self.connection.call("solve", solve, answer=Action)

    async def close(self, close: Close) -> None:
        await self.connection.call("close", close)

    def renew(self, session_ids: Sequence[str]) -> None:
        self.connection.tell("renew", Renew(tuple(session_ids)))

    def drain(self, draining: bool) -> None:
        self.connection.tell("drain", Drain(draining))

    def leave(self) -> None:
        self._leaving = asyncio.ensure_future(self.connection.close())

    async def raw(self, session_id: str, *, call: str, body: bytes) -> bytes:
        raise ControllerFailed(
            f"worker {self.id} speaks the Ludus protocol; {call!r} cannot be passed to it", status=501
        )


class WorkerCalls:
    """`is_expected(worker_id)`: whether a worker that is not connected may still come back."""

    def __init__(self, *, is_expected: Callable[[str], bool]) -> None:
        self._is_expected = is_expected
        self._here: dict[str, Worker] = {}
        self._clocks: dict[str, Clocks] = defaultdict(set)
        self._is_here: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def get(self, worker_id: str) -> Worker | None:
        return self._here.get(worker_id)

    def joined(self, worker: Worker) -> None:
        self._here[worker.id] = worker
        self._is_here[worker.id].set()

    def left(self, worker: Worker) -> bool:
        """False: this is an old object of a worker that has joined again."""
        if self._here.get(worker.id) is not worker:
            return False
        del self._here[worker.id]
        self._is_here[worker.id].clear()
        return True

    def give_up(self, worker_id: str) -> None:
        worker = self._here.pop(worker_id, None)
        if worker is not None:
            worker.leave()
        expire(self._clocks.pop(worker_id, set()))
        self._is_here.pop(worker_id, None)

    async def call(self, worker_id: str, what: Callable[[Worker], Awaitable[T]], *, limit_s: float) -> T:
        def late() -> WorkerLost:
            lost = not self._is_expected(worker_id)
            return WorkerLost(f"worker {worker_id} {'was lost' if lost else f'did not answer within {limit_s:g} s'}")

        async with within(limit_s, late, clocks=self._clocks[worker_id]):
            return await self._persist(worker_id, what)

    async def _persist(self, worker_id: str, what: Callable[[Worker], Awaitable[T]]) -> T:
        while True:
            worker = self._here.get(worker_id)
            if worker is None:
                if not self._is_expected(worker_id):
                    raise WorkerLost(f"worker {worker_id} was lost")
                await self._is_here[worker_id].wait()
                continue
            try:
                return await what(worker)
            except WorkerLost:
                if self._here.get(worker_id) is worker:
                    raise  # the worker is connected and raised this itself
