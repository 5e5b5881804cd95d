"""Inside a pen: the process that hosts one session at a time. Promise: it does not outlive the process that started it.

`python -m ludus.hosting.session_process FD PARENT` speaks the link's frames on the socket FD. The other end is `pens.py`.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import signal
import socket
import struct
import sys
from collections.abc import Mapping
from typing import Any

from ludus.environments import registry
from ludus.environments.environment import Environment
from ludus.environments.needs import demand
from ludus.errors import ControllerFailed
from ludus.hosting.host import Host, HostedSession, Player
from ludus.sandboxes.provider import Sandboxes
from ludus.types import Action, Task
from ludus.wire.codec import MAX_FRAME_BYTES, Record
from ludus.wire.connection import Connection, Handler

_LENGTH = struct.Struct("!I")
_PR_SET_PDEATHSIG = 1


class Spec(Record, frozen=True):
    """What another process makes the same environment from."""

    name: str
    source: str
    options: dict[str, Any] = {}
    sandbox: str = "none"
    """What the run file demands; the class itself says the rest."""
    image: str = ""


class OpenTask(Record, frozen=True):
    task: Task
    seed: int
    label: str = ""


class Propose(Record, frozen=True):
    player: Player
    seed: int


class StreamTransport:
    """A link's connection over a stream: each message after its length."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, data: bytes) -> None:
        self._writer.write(_LENGTH.pack(len(data)) + data)
        await self._writer.drain()

    async def recv(self) -> bytes:
        (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
        if length > MAX_FRAME_BYTES:
            raise ValueError(f"a message of {length} bytes; at most {MAX_FRAME_BYTES} are taken")
        return await self._reader.readexactly(length)

    async def close(self) -> None:
        self._writer.close()


class SessionHost:
    """One environment, and at most one session of it."""

    def __init__(self) -> None:
        self._host = Host(
            max_threads=8, max_hold_s=math.inf, sandboxes=Sandboxes()
        )  # nobody else is here: it may hold the loop for its whole turn
        self._environment: Environment | None = None
        self._session: HostedSession | None = None

    def endpoints(self) -> Mapping[str, Handler]:
        return {
            "make": Handler(Spec, self.make),
            "tasks": Handler(str, self.tasks),
            "open": Handler(OpenTask, self.open),
            "start": Handler(None, lambda _: self.session.start()),
            "act": Handler(Action, lambda action: self.session.act(action)),
            "propose": Handler(Propose, lambda ask: self.session.propose(ask.player, seed=ask.seed)),
            "close": Handler(None, lambda _: self.close()),
        }

    @property
    def session(self) -> HostedSession:
        if self._session is None:
            raise ControllerFailed("this pen has no session", status=409)
        return self._session

    def make(self, spec: Spec) -> None:
        self._environment = registry.make(spec.name, source=spec.source, options=spec.options)
        demand(self._environment, spec.sandbox, image=spec.image)

    async def tasks(self, split: str) -> list[Task]:
        assert self._environment is not None
        return await self._host.tasks(self._environment, split)

    async def open(self, ask: OpenTask) -> None:
        assert self._environment is not None
        assert self._session is None
        self._session = await self._host.open(self._environment, ask.task, seed=ask.seed, label=ask.label)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def die_with(parent: int) -> None:
    """The kernel kills this process when the one that started it is gone, even if a call holds the interpreter's lock for ever."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before we asked
        os._exit(0)


async def serve(end: socket.socket) -> None:
    connection = StreamTransport(*await asyncio.open_connection(sock=end))
    await Connection(connection, endpoints=SessionHost().endpoints(), peer="the worker").run()


def main(fd: int, parent: int) -> None:
    die_with(parent)
    os.set_inheritable(fd, False)  # or what the author starts would keep the connection open
    asyncio.run(serve(socket.socket(fileno=fd)))
    os._exit(0)  # threads of the author must not keep it


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
