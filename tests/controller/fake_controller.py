"""A controller that does what a test says, at a real websocket."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from websockets.asyncio.client import connect
from websockets.asyncio.server import serve

from ludus.controller.records import Act, Ended, Heartbeat, Open, Register, Registered, SessionSpec, Start
from ludus.types import Action, Observation, Task
from ludus.wire.connection import Connection, Handler
from tests.ports import free_port


class FakeController:
    def __init__(self, *, heartbeat_s=20.0):
        self.heartbeat_s = heartbeat_s
        self.registered: asyncio.Queue[Register] = asyncio.Queue()
        self.ended: asyncio.Queue[Ended] = asyncio.Queue()
        self.beats: list[Heartbeat] = []
        self.connections: list[Connection] = []
        self.unknown: tuple[str, ...] = ()
        self.headers: list[dict] = []
        self.port = free_port()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def worker(self) -> Connection:
        return self.connections[-1]

    @asynccontextmanager
    async def listening(self):
        async with serve(self._serve, "127.0.0.1", self.port, max_size=None):
            yield self

    async def _serve(self, websocket):
        assert websocket.request.path == "/link/worker"
        self.headers.append(dict(websocket.request.headers))
        handlers = {
            "register": Handler(Register, self._register),
            "heartbeat": Handler(Heartbeat, self.beats.append),
            "ended": Handler(Ended, self.ended.put_nowait),
        }
        connection = Connection(websocket, handlers=handlers, peer="the worker")
        self.connections.append(connection)
        await connection.run()

    def _register(self, register):
        self.registered.put_nowait(register)
        return Registered(self.heartbeat_s, self.unknown)

    async def open(self, session_id="s1", *, environment, number=0, **limits):
        task = Task(f"{environment}/train/{number}", environment, "train", {"n": number, "words": ["red", "blue"]})
        wanted = Open(task=task, seed=0, request_id=f"r-{session_id}", **limits)
        spec = SessionSpec.of(wanted, session_id=session_id, key=f"key-{session_id}", client="me")
        await self.worker.call("open", spec)


@asynccontextmanager
async def connected(address):
    """A client's connection to a worker."""
    async with connect(address, max_size=None, compression=None) as websocket:
        connection = Connection(websocket, peer="the worker")
        running = asyncio.create_task(connection.run())
        try:
            yield connection
        finally:
            running.cancel()
            await asyncio.wait([running])


def act(connection, text="red", *, turn=0, request="a", session_id="s1", key=None):
    key = f"key-{session_id}" if key is None else key
    return connection.call("act", Act(session_id, turn, Action(text), request, key), answer=Observation)


def start(connection, session_id="s1"):
    return connection.call("start", Start(session_id, f"key-{session_id}"), answer=Observation)
