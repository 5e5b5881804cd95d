"""A controller and workers in a few lines, for tests of the client: they remember what was called,
and go wrong to order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.server import Server, serve

from ludus.controller.records import (
    Act,
    AskTasks,
    Close,
    Described,
    Ended,
    Open,
    Opened,
    Renew,
    Renewed,
    Solve,
    Start,
    Withdraw,
)
from ludus.errors import ControllerFailed, WorkerLost
from ludus.types import Action, Message, Observation, Task
from ludus.wire.connection import Connection, Handler
from tests.ports import free_port

TASK = Task("echo/train/0", "echo", "train", {})


class Peer:
    """Something that listens; `await listen()` again after `await hang_up()` is a restart on the
    same port.
    """

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.port = free_port()
        self.heard: list[tuple[str, Any]] = []
        self._server: Server | None = None

    @property
    def address(self) -> str:
        return f"ws://127.0.0.1:{self.port}/link"

    async def listen(self) -> None:
        self._server = await serve(self._serve, "127.0.0.1", self.port, compression=None, process_request=self.greet)

    async def hang_up(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def cut(self) -> None:
        """All connections break; the next one is accepted."""
        for connection in self.connections:
            connection._transport.transport.abort()
        await asyncio.sleep(0)

    def greet(self, connection: Any, request: Any) -> Any:
        return None

    async def _serve(self, websocket: Any) -> None:
        connection = Connection(websocket, handlers={**self.handlers(), "ping": Handler(None, lambda _: "pong")})
        self.connections.append(connection)
        await connection.run()

    def handlers(self) -> dict[str, Handler]:
        raise NotImplementedError

    def calls(self, name: str) -> list[Any]:
        return [body for call, body in self.heard if call == name]


class EchoWorker(Peer):
    """Sessions that repeat what they are told. A repeated act is answered, not executed."""

    def __init__(self, *, delay_s: float = 0.0) -> None:
        super().__init__()
        self.delay_s = delay_s
        self.acts: dict[str, list[Action]] = {}
        self._running: dict[tuple[str, int, str], asyncio.Task[Observation]] = {}

    def handlers(self) -> dict[str, Handler]:
        bodies = {"start": Start, "act": Act, "solve": Solve, "close": Close, "renew": Renew}
        return {name: Handler(body, self.note(name, getattr(self, name))) for name, body in bodies.items()}

    def note(self, name: str, function: Any) -> Any:
        def noted(body: Any) -> Any:
            self.heard.append((name, body))
            if name != "renew" and body.session_id not in self.acts:
                raise ControllerFailed(f"no session {body.session_id!r}", status=404)
            return function(body)

        return noted

    async def start(self, start: Start) -> Observation:
        return Observation(messages=(Message("user", "say something"),))

    async def act(self, act: Act) -> Observation:
        what = (act.session_id, act.turn, act.request_id)
        if what not in self._running:
            self._running[what] = asyncio.ensure_future(self._act(act))
        return await asyncio.shield(self._running[what])

    async def _act(self, act: Act) -> Observation:
        self.acts[act.session_id].append(act.action)
        await asyncio.sleep(self.delay_s)
        return Observation(messages=(Message("user", act.action.content),))

    async def solve(self, solve: Solve) -> Action:
        return Action(f"{solve.player} {solve.seed}")

    def close(self, close: Close) -> None:
        del self.acts[close.session_id]

    def renew(self, renew: Renew) -> Renewed:
        return Renewed(tuple(each for each in renew.session_ids if each not in self.acts))


class EchoController(Peer):
    """Places every session on its one worker, and relays where it is asked to."""

    def __init__(self, worker: EchoWorker) -> None:
        super().__init__()
        self.worker, self.num_opened = worker, 0
        self.worker_address: str | None = None
        """What it tells clients, where that is not the worker's own."""
        self.lost = ""
        self.token = ""
        self.hold = asyncio.Event()
        self.hold.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def greet(self, connection: Any, request: Any) -> Any:
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return connection.respond(401, "who are you?\n")
        return None

    def handlers(self) -> dict[str, Handler]:
        own = {"tasks": (AskTasks, self.tasks), "open": (Open, self.open), "withdraw": (Withdraw, lambda _: None)}
        own["environments"] = (None, lambda _: (Described("echo", max_turns=3, options={"loud": True}),))
        relayed = {
            name: Handler(each.body, self._relay(name, each.function)) for name, each in self.worker.handlers().items()
        }
        return {name: Handler(body, self._note(name, function)) for name, (body, function) in own.items()} | relayed

    def _note(self, name: str, function: Any) -> Any:
        def noted(body: Any) -> Any:
            self.heard.append((name, body))
            return function(body)

        return noted

    def _relay(self, name: str, function: Any) -> Any:
        def relay(body: Any) -> Any:
            self.heard.append((name, body))
            if self.lost:
                raise WorkerLost(self.lost)
            return function(body)

        return relay

    async def tasks(self, ask: AskTasks) -> tuple[Task, ...]:
        return (TASK,)

    async def open(self, wanted: Open) -> Opened:
        await self.hold.wait()
        session_id = f"s{self.num_opened}"
        self.num_opened += 1
        self.worker.acts[session_id] = []
        address = self.worker.address if self.worker_address is None else self.worker_address
        return Opened(session_id, key=f"key of {session_id}", worker_id="w", address=address)

    def tell_ended(self, session_id: str, message: str) -> None:
        for connection in self.connections:
            connection.tell("ended", Ended(session_id, cause="failed", message=message))


@asynccontextmanager
async def plane(**settings: Any) -> AsyncIterator[tuple[EchoController, EchoWorker]]:
    worker = EchoWorker(**settings)
    controller = EchoController(worker)
    await worker.listen()
    await controller.listen()
    try:
        yield controller, worker
    finally:
        await controller.hang_up()
        await worker.hang_up()
