"""Workers as the controller talks to them. Promise: the controller never asks which kind it has before it.

`ConnectedWorker` is ours, over the link that it dialled. A foreign kind implements `Worker` beside its dialect (agentrl/) and uses
four methods of `server.Controller`:

    controller.join(worker, register)      it is here: placement begins; joining again with the same id replaces the old object
    controller.heard(worker_id)            it is alive; three silent heartbeats and it is lost
    controller.ended(worker_id, Ended)     a session is over there, its slot is free
    controller.lost(worker_id, reason)     it is gone: its sessions end as failed

A front door for foreign clients is a FastAPI router; it calls `controller.open, start, act, solve, close, tasks` like our own routes do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from ludus.controller.records import Act, AskTasks, Close, Drain, OpenHere, Renew, Solve, Start
from ludus.errors import ControllerFailed
from ludus.types import Action, Observation, Task
from ludus.wire.connection import Connection


class Worker(Protocol):
    """Somewhere sessions run. Calls raise EnvironmentFailed (its code), WorkerLost (nobody there) or ControllerFailed (refused: status).

    A call that raised WorkerLost is repeated, with the same ids, once the worker has joined again: a repeated `open`, `start` or `act`
    must be answered with what the first one did, and not be executed twice.
    """

    @property
    def id(self) -> str: ...

    @property
    def dialect(self) -> str:
        """ludus, or the foreign system's name. A front door of the same dialect may pass its own JSON by `raw`."""
        ...

    @property
    def keeps_leases(self) -> bool:
        """True: it closes sessions that nobody renews, and tells `ended`. False: the controller keeps the leases and calls `close`."""
        ...

    async def open(self, here: OpenHere) -> None:
        """ControllerFailed with status 503 says that there is no slot after all: the session waits again, for any worker."""
        ...

    async def tasks(self, ask: AskTasks) -> tuple[Task, ...]: ...

    async def start(self, start: Start) -> Observation: ...

    async def act(self, act: Act) -> Observation: ...

    async def solve(self, solve: Solve) -> Action: ...

    async def close(self, close: Close) -> None:
        """Frees the session there, whatever its code does. Unknown ones are closed already."""
        ...

    def renew(self, session_ids: Sequence[str]) -> None:
        """Their client is alive. Quick, and nothing comes back."""
        ...

    def drain(self, draining: bool) -> None:
        """No new sessions, or again some. Only a wish: the controller places nothing on a drained worker anyway."""
        ...

    def leave(self) -> None:
        """The controller has given it up as lost. Quick; a worker that lives after all may join anew."""
        ...

    async def raw(self, session_id: str, *, call: str, body: bytes) -> bytes:
        """A foreign call in the worker's own words, where client and worker both speak them, so that no field is lost in translation."""
        ...


class ConnectedWorker:
    """One of our workers, at the other end of its link."""

    dialect = "ludus"
    keeps_leases = True

    def __init__(self, worker_id: str, *, link: Connection) -> None:
        self.id = worker_id
        self.link = link

    async def open(self, here: OpenHere) -> None:
        await self.link.call("open", here)

    async def tasks(self, ask: AskTasks) -> tuple[Task, ...]:
        tasks: tuple[Task, ...] = await self.link.call("tasks", ask, answer=tuple[Task, ...])
        return tasks

    async def start(self, start: Start) -> Observation:
        observation: Observation = await self.link.call("start", start, answer=Observation)
        return observation

    async def act(self, act: Act) -> Observation:
        observation: Observation = await self.link.call("act", act, answer=Observation)
        return observation

    async def solve(self, solve: Solve) -> Action:
        action: Action = await self.link.call("solve", solve, answer=Action)
        return action

    async def close(self, close: Close) -> None:
        await self.link.call("close", close)

    def renew(self, session_ids: Sequence[str]) -> None:
        self.link.tell("renew", Renew(tuple(session_ids)))

    def drain(self, draining: bool) -> None:
        self.link.tell("drain", Drain(draining))

    def leave(self) -> None:
        self._leaving = asyncio.ensure_future(self.link.close())

    async def raw(self, session_id: str, *, call: str, body: bytes) -> bytes:
        raise ControllerFailed(
            f"worker {self.id} speaks Ludus' own protocol; {call!r} cannot be passed to it", status=501
        )
