"""For tests of the controller: a worker that does what the test says, and a client, both over real
connections on loopback.
"""

import asyncio
import contextlib
import time

from websockets.asyncio.client import connect

from ludus.controller.records import (
    Act,
    AskTasks,
    Close,
    Described,
    Drain,
    Ended,
    Heartbeat,
    Open,
    Opened,
    Register,
    Registered,
    Renew,
    SessionSpec,
    Solve,
    Start,
)
from ludus.controller.service.server import Settings
from ludus.controller.service.serving import serving
from ludus.errors import EnvironmentFailed
from ludus.types import Action, Message, Observation, Task
from ludus.wire.connection import Connection, Handler


def run(test, *, limit_s=180):
    asyncio.run(asyncio.wait_for(test, limit_s))


def controller(**settings):
    """Nobody is lost for being silent unless `pass_time` says that time has passed: a busy machine
    may stop us for seconds."""
    return serving(Settings(**{"grace_s": 0.3, "heartbeat_s": 60.0, **settings}))


def pass_time(served, *, seconds):
    """As if so much time had passed for the controller."""
    before = served.controller._clock
    served.controller._clock = lambda: before() + seconds


def stop_time(served):
    """For its limits of rates."""
    now = time.monotonic()
    served.controller.rates._clock = lambda: now


def task(number=0, *, environment="maze"):
    return Task(f"{environment}/train/{number}", environment, "train", {"number": number})


def wish(number=0, *, request_id=None, environment="maze", **options):
    return Open(task(number, environment=environment), seed=7, request_id=request_id or f"request-{number}", **options)


def settle(served):
    """As if the time had passed in which workers may come back after a restart."""
    served.controller.roster._settled_at = None


async def until(condition, *, limit_s=60.0):
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.005)


class Connected:
    def __init__(self, websocket, connection):
        self.websocket, self.connection = websocket, connection
        self.running = asyncio.create_task(connection.run())

    async def cut(self):
        """As if the process were killed."""
        self.websocket.transport.abort()
        await asyncio.gather(self.running, return_exceptions=True)

    async def close(self):
        await self.websocket.close()
        await asyncio.gather(self.running, return_exceptions=True)


async def dial(url, path, *, token="", handlers=None):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    address = url.replace("http", "ws", 1) + path
    websocket = await connect(address, additional_headers=headers, compression=None, max_size=None)
    return Connected(websocket, Connection(websocket, handlers=handlers))


class FakeWorker:
    """Answers act with what it was told, remembers everything it was asked, and hangs while
    `may_act` is not set.
    """

    def __init__(self, url, worker_id="w1", *, slots=4, environments=("maze",), token="", options=None):
        self.url, self.token = url, token
        self.worker_id, self.slots = worker_id, slots
        self.environments = tuple(Described(name, options=options or {}) for name in environments)
        self.sessions: dict[str, SessionSpec] = {}
        self.opened, self.acts, self.keys, self.closed = [], [], [], []
        self.renewed, self.drains, self.asked = [], [], []
        self.may_act, self.may_open = asyncio.Event(), asyncio.Event()
        self.may_act.set()
        self.may_open.set()
        self.fails = ""
        self.refuses = None

    async def join(self, *, keeps=True):
        handlers = {
            "open": Handler(SessionSpec, self._open),
            "tasks": Handler(AskTasks, self._tasks),
            "start": Handler(Start, self._start),
            "act": Handler(Act, self._act),
            "solve": Handler(Solve, lambda solve: Action(f"{solve.player} {solve.seed}")),
            "close": Handler(Close, self._close),
            "renew": Handler(Renew, lambda renew: self.renewed.extend(renew.session_ids)),
            "drain": Handler(Drain, lambda drain: self.drains.append(drain.draining)),
        }
        self.connected = await dial(self.url, "/link/worker", token=self.token, handlers=handlers)
        running = tuple(self.sessions.values()) if keeps else ()
        register = Register(self.worker_id, self.environments, self.slots, "ws://w/link", running)
        self.registered = await self.connected.connection.call("register", register, answer=Registered)
        for session_id in self.registered.unknown:
            self.sessions.pop(session_id, None)
        return self

    def beat(self, *, draining=False):
        self.connected.connection.tell("heartbeat", Heartbeat(self.worker_id, len(self.sessions), draining))

    def end(self, session_id, cause="done", message=""):
        self.sessions.pop(session_id, None)
        self.connected.connection.tell("ended", Ended(session_id, cause, message))

    async def cut(self):
        await self.connected.cut()

    async def close(self):
        await self.connected.close()

    async def _open(self, spec):
        await self.may_open.wait()
        if self.refuses is not None:
            failure, self.refuses = self.refuses, None
            raise failure
        if spec.session_id not in self.sessions:
            self.opened.append(spec)
        self.sessions[spec.session_id] = spec

    def _tasks(self, ask):
        self.asked.append(ask)
        return [task(n, environment=ask.environment) for n in range(5)]

    def _start(self, start):
        self.keys.append(start.key)
        return Observation((Message("user", f"welcome to {self.sessions[start.session_id].task.id}"),))

    async def _act(self, act):
        self.acts.append(act)
        self.keys.append(act.key)
        await self.may_act.wait()
        if self.fails:
            raise EnvironmentFailed(self.fails)
        return Observation((Message("user", f"you said {act.action.content}"),), reward=1.0, done=act.turn == 1)

    def _close(self, close):
        self.closed.append(close.session_id)
        self.sessions.pop(close.session_id, None)


class FakeClient:
    def __init__(self, connected):
        self.connected = connected
        self.told: list[Ended] = []

    @classmethod
    async def dial(cls, url, *, token=""):
        told = []
        client = cls(await dial(url, "/link", token=token, handlers={"ended": Handler(Ended, told.append)}))
        client.told = told
        return client

    def open(self, *args, **options):
        return asyncio.ensure_future(self.connected.connection.call("open", wish(*args, **options), answer=Opened))

    async def start(self, session_id):
        return await self.connected.connection.call("start", Start(session_id), answer=Observation)

    async def act(self, session_id, *, turn=0, content="left", request_id="a0"):
        return await self.connected.connection.call(
            "act", Act(session_id, turn, Action(content), request_id), answer=Observation
        )

    async def call(self, name, body=None, *, answer=None):
        return await self.connected.connection.call(name, body, answer=answer)

    async def close(self):
        await self.connected.close()


@contextlib.asynccontextmanager
async def plane(*, slots=4, **settings):
    """A controller with one worker and one client."""
    async with controller(**settings) as served:
        worker = await FakeWorker(served.url, slots=slots).join()
        client = await FakeClient.dial(served.url)
        try:
            yield served, worker, client
        finally:
            worker.may_act.set()
            worker.may_open.set()
            await client.close()
            await worker.close()
