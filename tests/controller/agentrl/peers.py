"""A controller in a thread and AgentRL's own programs in processes, for tests that cross from one
to the other.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx

from ludus.controller.agentrl.routes import AgentrlRoutes
from ludus.controller.service.server import Controller, Settings
from ludus.controller.service.serving import serving
from ludus.controller.worker.worker import Worker
from ludus.environments import Reply, make
from ludus.environments.author import AuthoredEnvironment

HERE = Path(__file__).parent


class Half:
    """Double the number. Thinking pays a half, the answer another."""

    max_turns = 4

    def tasks(self, split: str) -> list[dict[str, int]]:
        return [{"number": number} for number in range(6)] if split == "test" else []

    def setup(self, task: dict[str, int], rng: Any) -> str:
        self.number = task["number"]
        return f"number {self.number}"

    def act(self, text: str) -> Reply | str:
        if text == "fail":
            raise RuntimeError("the environment fails")
        if text == "let me think":
            return Reply("part one", reward=0.5)
        return Reply("right", reward=0.5, done=True) if text == str(2 * self.number) else "wrong"


class Plane:
    """A controller and a worker of ours, with their own loop and thread; `call` runs a coroutine
    function there.
    """

    def __init__(self, *, ours: bool = True, **settings: Any) -> None:
        self._ours = ours
        self.url = ""
        self.controller: Controller
        self.routes: AgentrlRoutes
        self._settings = Settings(agentrl_grpc_port=0, **settings)
        self._ready, self._thread = threading.Event(), threading.Thread(target=self._run, daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event

    def _run(self) -> None:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with serving(self._settings) as served:
            self.controller, self.url, self.routes = served.controller, served.url, served.agentrl
            async with self._worker_of_ours() if self._ours else nullcontext():
                self._ready.set()
                await self._stop.wait()

    @asynccontextmanager
    async def _worker_of_ours(self) -> AsyncIterator[None]:
        worker = Worker([AuthoredEnvironment(Half), make("guess")], controller=self.url, slots=4)
        running = asyncio.create_task(worker.run())
        while not self.controller.roster.seats:
            await asyncio.sleep(0.01)
        yield
        worker.stop()
        await running

    def __enter__(self) -> Plane:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: Any) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        async def run() -> Any:
            result = function(*arguments, **named)
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(60)

    @property
    def api(self) -> str:
        return f"{self.url}/api"

    @property
    def grpc(self) -> str:
        return f"grpc://127.0.0.1:{self.routes.fleet.port}"

    def worker(self, name: str) -> Any:
        return next((each for each in self.routes.fleet.workers.values() if each.name == name), None)

    def num_sessions(self, name: str) -> int:
        """That their own worker counts as running."""
        return len(self.call(self.worker(name).there))


@contextmanager
def processes(*command: str, log: Path, told: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A program and whatever it starts; all of it is killed at the end."""
    environment = os.environ | {"PYTHONPATH": str(HERE)}
    with log.open("wb") as out:
        started = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            env=environment,
            start_new_session=True,
        )
    assert started.stdin is not None
    started.stdin.write(f"{told}\n".encode())
    started.stdin.flush()  # and left open: it tells the program that we live
    try:
        yield started
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.stdin.close()
        started.wait()


def until(holds: Callable[[], Any], *, limit_s: float = 90.0, what: str = "it") -> Any:
    """What `holds` answers, once that is true; a test that waits for longer fails."""
    give_up = time.monotonic() + limit_s
    while not (value := holds()):
        assert time.monotonic() < give_up, f"{what} did not come about within {limit_s:g} s"
        time.sleep(0.02)
    return value


class Api:
    """Calls as AgentRL's clients make them."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=60)

    def start(self, name: str, index: Any, **more: Any) -> tuple[int, dict[str, Any]]:
        response = self._client.post("start_sample", json={"name": name, "index": index, **more})
        assert response.status_code == 200, response.text
        return int(response.headers["session_id"]), response.json()

    def say(self, number: int, *messages: Any) -> httpx.Response:
        said = [m if isinstance(m, dict) else {"role": "assistant", "content": m} for m in messages]
        return self._client.post("interact", headers={"session_id": str(number)}, json={"messages": said})

    def cancel(self, number: int) -> None:
        assert self._client.post("cancel", headers={"session_id": str(number)}).json() is None

    def get(self, path: str, **query: Any) -> httpx.Response:
        return self._client.get(path, params=query)

    def post(self, path: str, body: Any = None, **query: Any) -> httpx.Response:
        return self._client.post(path, content=json.dumps(body), params=query)
