"""Turns per second and latency through controller and worker, against a plain FastAPI create/step/close server of AgentGym's shape.

An environment that does nothing; everything on loopback; one client process on either side, and the same work in the same order:

    ours    client ──▶ controller (opens), client ──▶ worker (turns, one multiplexed connection); real processes, `ludus serve ...`
    theirs  client (aiohttp, kept-alive connections, JSON) ──▶ FastAPI on uvicorn with httptools and uvloop, handlers `async def`: no
            thread per request, which is kinder than AgentGym's own servers

Saturated: every session acts again as soon as it is answered, so latency is mostly queueing (sessions / turns per second). Paced: the
sessions together offer 2,000 turns per second, as sessions do that wait for a model between two turns.

    python benchmarks/controller.py --seconds 4
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import aiohttp
from pydantic import BaseModel

from ludus.controller.client.remote import RemoteClient, RemoteSession
from ludus.types import Action, Message, Observation, Task

CONCURRENT = (1, 100, 1000)
LIVE = 10_000
PACED_PER_S = 2000
RAMP_S = 0.2
"""Sessions begin one after the other within this time: a thousand at the same moment would be a measurement of that moment."""
MAX_CONNECTIONS = 64
"""Of the peer's client: measured best between 16 and 1,000. httpx was slower than aiohttp at any number."""
ACTION = "a short line of text, as a small model would say it"


# ------------------------------------------------------------------------------------------------ the environment, and the peer's server


class Nothing:
    """An Environment that does nothing: every action is answered with a word."""

    name, description, max_turns = "nothing", "Does nothing.", None

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"nothing/{split}/0", "nothing", split)]

    def open(self, task: Task, *, seed: int) -> NothingSession:
        return NothingSession()


class NothingSession:
    async def start(self) -> Observation:
        return Observation(messages=(Message("user", "begin"),), tools=())

    async def act(self, action: Action) -> Observation:
        return Observation(messages=(Message("user", "go on"),))

    async def close(self) -> None:
        return None


class Reset(BaseModel):
    id: int
    data_idx: int


class Step(BaseModel):
    id: int
    action: str


class Close(BaseModel):
    id: int


def serve_peer() -> None:
    """`python benchmarks/controller.py --serve-peer`: prints its URL, then serves."""
    import itertools
    import socket

    import uvicorn
    from fastapi import FastAPI

    app, sessions, ids = FastAPI(), dict[int, int](), itertools.count()

    @app.post("/create")
    async def create() -> dict[str, Any]:
        number = next(ids)
        sessions[number] = 0
        return {"id": number}

    @app.post("/reset")
    async def reset(body: Reset) -> dict[str, Any]:
        sessions[body.id] = 0
        return {"id": body.id, "observation": "begin", "reward": 0.0, "done": False}

    @app.post("/step")
    async def step(body: Step) -> dict[str, Any]:
        sessions[body.id] += 1
        return {"observation": "go on", "reward": 0.0, "done": False}

    @app.post("/close")
    async def close(body: Close) -> dict[str, Any]:
        return {"closed": sessions.pop(body.id, None) is not None}

    listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_keep_alive=3600)
    uvicorn.Server(config).run(sockets=[listening])


# ------------------------------------------------------------------------------------------------ two sides, one interface


class Session(Protocol):
    async def turn(self) -> None: ...

    async def close(self) -> None: ...


class OurSession:
    def __init__(self, session: RemoteSession) -> None:
        self._session, self.close = session, session.close

    async def turn(self) -> None:
        observation = await self._session.act(Action(ACTION))
        assert observation.messages[0].content == "go on"


class Ours:
    name = "ludus"

    def __init__(self, client: RemoteClient, task: Task, pids: dict[str, int]) -> None:
        self._client, self._task, self.pids = client, task, pids

    async def open(self) -> OurSession:
        session = await self._client.open(self._task, seed=0)
        await session.start()
        return OurSession(session)


class PeerSession:
    def __init__(self, http: aiohttp.ClientSession, number: int) -> None:
        self._http, self._number = http, number

    async def turn(self) -> None:
        answer = await _post(self._http, "/step", {"id": self._number, "action": ACTION})
        assert answer["observation"] == "go on"

    async def close(self) -> None:
        assert (await _post(self._http, "/close", {"id": self._number}))["closed"]


class Peer:
    name = "fastapi"

    def __init__(self, http: aiohttp.ClientSession, pids: dict[str, int]) -> None:
        self._http, self.pids = http, pids

    async def open(self) -> PeerSession:
        number = (await _post(self._http, "/create", {}))["id"]
        await _post(self._http, "/reset", {"id": number, "data_idx": 0})
        return PeerSession(self._http, number)


Side = Ours | Peer


async def _post(http: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> Any:
    async with http.post(path, json=body) as answer:
        answer.raise_for_status()
        return await answer.json()


@asynccontextmanager
async def ours(folder: Path) -> AsyncIterator[Ours]:
    async with AsyncExitStack() as closing:
        serve = [sys.executable, "-m", "ludus.cli.attached", "serve"]
        controller = closing.enter_context(_process([*serve, "controller", "--port", "0"], log=folder / "controller"))
        url = await _announced(folder / "controller")
        source = f"{Path(__file__).resolve()}:Nothing"
        command = [*serve, "worker", source, "--controller", url, "--slots", str(2 * LIVE)]
        worker = closing.enter_context(_process(command, log=folder / "worker"))
        client = await RemoteClient.connect(url)
        closing.push_async_callback(client.close)
        while not client.environments():
            assert worker.poll() is None, (folder / "worker").read_text()
            await asyncio.sleep(0.05)
            await client.refresh()
        (task,) = await client.tasks("nothing", "train")
        yield Ours(client, task, {"controller": controller.pid, "worker": worker.pid})


@asynccontextmanager
async def peer(folder: Path) -> AsyncIterator[Peer]:
    with _process([sys.executable, __file__, "--serve-peer"], log=folder / "peer") as server:
        url = await _announced(folder / "peer")
        connector = aiohttp.TCPConnector(limit=MAX_CONNECTIONS)
        async with aiohttp.ClientSession(url, connector=connector, timeout=aiohttp.ClientTimeout(600)) as http:
            yield Peer(http, {"server": server.pid})


@contextlib.contextmanager
def _process(command: list[str], *, log: Path) -> Any:
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


async def _announced(log: Path) -> str:
    """The URL that a server prints when it listens."""
    for _ in range(600):
        if found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text()):
            return found.group(0)
        await asyncio.sleep(0.05)
    raise RuntimeError(f"no URL in {log}:\n{log.read_text()}")


# ------------------------------------------------------------------------------------------------ what is measured


async def turns(side: Side, *, sessions: int, seconds: float, per_s: float | None = None) -> dict[str, float]:
    """Turns per second and latencies of so many sessions at once; `per_s` is what they offer together, else all they can."""
    live = await _in_parts([side.open for _ in range(sessions)])
    latencies: list[float] = []
    began = time.perf_counter()
    until = began + seconds

    async def play(session: Session, number: int) -> None:
        pause_s = sessions / per_s if per_s else 0.0
        due = began + (pause_s or RAMP_S) * number / sessions
        while max(due, before := time.perf_counter()) < until:
            if before < due:
                await asyncio.sleep(due - before)
                before = time.perf_counter()
            due += pause_s
            await session.turn()
            latencies.append(time.perf_counter() - before)

    await asyncio.gather(*(play(session, number) for number, session in enumerate(live)))
    elapsed_s = time.perf_counter() - began
    await _in_parts([session.close for session in live])
    cut = statistics.quantiles(latencies, n=100)
    return {
        "turns_per_s": round(len(latencies) / elapsed_s),
        "p50_ms": round(1000 * cut[49], 2),
        "p99_ms": round(1000 * cut[98], 2),
    }


async def live(side: Side, *, sessions: int) -> dict[str, Any]:
    """So many sessions open at the same time: each opened, started, acted on once, closed. Memory is that of the servers."""
    before, began = _rss(side), time.perf_counter()
    opened = await _in_parts([side.open for _ in range(sessions)])
    opened_s = time.perf_counter() - began
    await _in_parts([session.turn for session in opened])
    acted_s = time.perf_counter() - began - opened_s
    during = _rss(side)
    await _in_parts([session.close for session in opened])
    total_s = time.perf_counter() - began
    return {
        "sessions": len(opened),
        "sessions_per_s": round(sessions / total_s),
        "open_s": round(opened_s, 2),
        "act_s": round(acted_s, 2),
        "close_s": round(total_s - opened_s - acted_s, 2),
        **{f"{name}_kib_per_session": round((during[name] - before[name]) / sessions, 2) for name in side.pids},
    }


async def _in_parts(calls: list[Callable[[], Awaitable[Any]]], *, at_once: int = 1000) -> list[Any]:
    done: list[Any] = []
    for start in range(0, len(calls), at_once):
        done += await asyncio.gather(*(call() for call in calls[start : start + at_once]))
    return done


def _rss(side: Side) -> dict[str, float]:
    """KiB in memory, by process."""
    found = {}
    for name, pid in side.pids.items():
        status = Path(f"/proc/{pid}/status").read_text()
        found[name] = float(re.search(r"VmRSS:\s+(\d+)", status).group(1))  # type: ignore[union-attr]
    return found


async def measure(seconds: float, repeats: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with ours(Path(folder)) as us, peer(Path(folder)) as them:
            for sessions in CONCURRENT:
                _print(
                    f"controller/turns_{sessions}",
                    await _both(us, them, repeats, turns, sessions=sessions, seconds=seconds),
                )
            paced = {"sessions": 1000, "seconds": seconds, "per_s": PACED_PER_S}
            _print("controller/paced_1000", await _both(us, them, 1, turns, **paced), ratio_of="p99_ms")
            _print(f"controller/live_{LIVE}", await _both(us, them, 1, live, sessions=LIVE), ratio_of="sessions_per_s")


async def _both(
    us: Ours, them: Peer, repeats: int, work: Any, **settings: Any
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [(await work(us, **settings), await work(them, **settings)) for _ in range(repeats)]


def _print(case: str, pairs: list[tuple[dict[str, Any], dict[str, Any]]], *, ratio_of: str = "turns_per_s") -> None:
    """One line of the pair with the median ratio; a ratio above 1 is in our favour."""
    better = (lambda a, b: b / a) if ratio_of.endswith("_ms") else (lambda a, b: a / b)
    ranked = sorted(pairs, key=lambda pair: better(pair[0][ratio_of], pair[1][ratio_of]))
    mine, theirs = ranked[len(ranked) // 2]
    ratio = round(better(mine[ratio_of], theirs[ratio_of]), 2)
    line = {
        "case": case,
        "ratio": ratio,
        "ratio_of": ratio_of,
        "ludus": mine,
        "fastapi": theirs,
        "cpus": os.cpu_count(),
    }
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement of turns")
    parser.add_argument("--repeats", type=int, default=3, help="of each; the line is of the pair with the median ratio")
    parser.add_argument("--serve-peer", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve_peer:
        serve_peer()
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(measure(given.seconds, given.repeats))


if __name__ == "__main__":
    main()
