"""A process that hosts one session at a time: `python -m ludus.hosting.session_process FD
PARENT`. The other end of its connection is process_pool.py."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

from ludus.environments import registry
from ludus.environments.environment import Environment
from ludus.environments.needs import demand
from ludus.errors import ControllerFailed
from ludus.hosting.host import Host, HostedSession, Player
from ludus.processes.parent import parent_socket
from ludus.sandboxes.provider import Sandboxes
from ludus.types import Action, Task
from ludus.wire.codec import Record
from ludus.wire.connection import Connection, Handler
from ludus.wire.stream import StreamTransport


class EnvironmentSpec(Record, frozen=True):
    """What another process makes the same environment from."""

    name: str
    source: str
    options: dict[str, Any] = {}
    sandbox: str = "none"
    """The run file's demand, beside what the class declares."""
    image: str = ""


class OpenTask(Record, frozen=True):
    task: Task
    seed: int
    label: str = ""


class Propose(Record, frozen=True):
    player: Player
    seed: int


class SessionHost:
    """One environment, and at most one session of it."""

    def __init__(self) -> None:
        # the session is alone here, so it may hold the event loop for its whole turn
        self._host = Host(max_threads=8, max_hold_s=math.inf, sandboxes=Sandboxes())
        self._environment: Environment
        self._session: HostedSession | None = None

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "make": Handler(EnvironmentSpec, self.make),
            "tasks": Handler(str, lambda split: self._host.tasks(self._environment, split)),
            "open": Handler(OpenTask, self.open),
            "start": Handler(None, lambda _: self.session.start()),
            "act": Handler(Action, lambda action: self.session.act(action)),
            "propose": Handler(Propose, lambda ask: self.session.propose(ask.player, seed=ask.seed)),
            "close": Handler(None, lambda _: self.close()),
        }

    @property
    def session(self) -> HostedSession:
        if self._session is None:
            raise ControllerFailed("this process has no session", status=409)
        return self._session

    def make(self, spec: EnvironmentSpec) -> None:
        self._environment = registry.make(spec.name, source=spec.source, options=spec.options)
        demand(self._environment, spec.sandbox, image=spec.image)

    async def open(self, ask: OpenTask) -> None:
        assert self._session is None
        self._session = await self._host.open(self._environment, ask.task, seed=ask.seed, label=ask.label)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


async def serve(end: socket.socket) -> None:
    transport = await StreamTransport.over(end)
    await Connection(transport, handlers=SessionHost().handlers(), peer="the worker").run()


if __name__ == "__main__":
    asyncio.run(serve(parent_socket(sys.argv)))
    os._exit(0)  # an author's threads must not keep it
