"""The cost of every world: turns per second, start times and memory, and which player wins.

Prints one line per world, each measured in a process of its own. The solver plays its tasks once,
and its actions are then replayed as fast as possible, so that a turn is the world's own work:

    here     `act` called on the session, one session after the other
    workers  client ──▶ controller (opens), client ──▶ worker (turns), many sessions at once

`ratio` is workers over here. Worlds whose sessions have a process each (Java, Chromium) can be
faster through a worker, which uses all cores. `world_start_s` is from `import ludus` to the first
prompt, `session_start_ms` the median of the later ones. `kib_per_session` is what concurrent
sessions add to the worker and its child processes; shared pages are divided among processes.

    python benchmarks/worlds.py > worlds.jsonl && python docs/make_worlds.py worlds.jsonl
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

BEGAN = time.perf_counter()

from ludus.controller.client.remote import RemoteClient  # noqa: E402
from ludus.environments import make  # noqa: E402
from ludus.environments.registry import BUILT_IN  # noqa: E402
from ludus.errors import LudusError  # noqa: E402
from ludus.sandboxes.provider import Sandboxes  # noqa: E402
from ludus.types import Action, Observation, Task  # noqa: E402

TARGETS = {"textcraft": 20_000, "babyai": 600, "sciworld": 100}
"""Turns per second that these worlds must reach in one process."""
HEAVY = {"shell": 8, "babyai": 32, "sciworld": 2, "household": 2, "browser": 2}
"""Concurrent sessions of the worlds with a sandbox or a process each; the others have LIGHT."""
LIGHT = 64
READY_S = 60.0


@dataclass(frozen=True)
class Played:
    """A session to replay."""

    task: Task
    seed: int
    actions: tuple[Action, ...]
    success: bool


class Here:
    """Sessions of one world in this process."""

    def __init__(self, name: str, sandboxes: Sandboxes) -> None:
        self.world: Any = make(name)
        self._sandboxes = sandboxes

    @contextlib.contextmanager
    def session(self, task: Task, *, seed: int) -> Iterator[Any]:
        given: dict[str, Any] = {}
        if self.world.needs.kind != "none":
            given["sandbox"] = self._sandboxes.open(self.world.needs.sandbox, image=self.world.needs.image)
        opened = self.world.open(task, seed=seed, **given)
        try:
            yield opened
        finally:
            opened.close()
            if given:
                given["sandbox"].close()

    def play(self, tasks: Sequence[Task], *, player: str) -> list[Played]:
        played = []
        for seed, task in enumerate(tasks):
            rng, actions, seen = random.Random(seed), [], list[Observation]()
            with self.session(task, seed=seed) as session:
                seen.append(session.start())
                while not seen[-1].done and len(actions) < self.world.max_turns:
                    actions.append(session.solve() if player == "solver" else session.random_action(rng))
                    seen.append(session.act(actions[-1]))
            played.append(Played(task, seed, tuple(actions), _won(seen)))
        return played

    def replay(self, played: Sequence[Played], *, seconds: float) -> tuple[float, float]:
        """Turns per second, and the median time of a start in milliseconds."""
        starts, turns, acting_s, began = [], 0, 0.0, time.perf_counter()
        for each in cycle(played):
            with self.session(each.task, seed=each.seed) as session:
                before = time.perf_counter()
                session.start()
                starts.append(time.perf_counter() - before)
                before = time.perf_counter()
                for action in each.actions:
                    session.act(action)
                acting_s += time.perf_counter() - before
                turns += len(each.actions)
            if acting_s > seconds or time.perf_counter() - began > 5 * seconds:
                return turns / acting_s, 1000 * statistics.median(starts)
        raise AssertionError


def _won(seen: Sequence[Observation]) -> bool:
    metrics = {name: value for each in seen for name, value in each.metrics.items()}
    return metrics.get("success", sum(each.reward for each in seen)) >= 1 - 1e-6


# ------------------------------------------------------------ through controller and worker


@asynccontextmanager
async def serving(name: str, *, slots: int, folder: Path) -> AsyncIterator[tuple[RemoteClient, int]]:
    """A client, and the worker's process id."""
    serve = [sys.executable, "-m", "ludus.cli.attached", "serve"]
    with contextlib.ExitStack() as processes:
        controller = [*serve, "controller", "--port", "0", "--max-rate", "0"]
        processes.enter_context(_process(controller, log=folder / "controller"))
        url = await _announced(folder / "controller")
        command = [*serve, "worker", name, "--controller", url, "--slots", str(slots)]
        worker = processes.enter_context(_process(command, log=folder / "worker"))
        client = await RemoteClient.connect(url)
        try:
            until = time.monotonic() + READY_S
            while not client.environments():
                assert worker.poll() is None, (folder / "worker").read_text()
                assert time.monotonic() < until, f"no worker of {name} within {READY_S:.0f} s"
                await asyncio.sleep(0.02)
                await client.refresh()
            yield client, worker.pid
        finally:
            await client.close()


async def remote(name: str, played: Sequence[Played], *, sessions: int, seconds: float) -> dict[str, float]:
    folder = Path(tempfile.mkdtemp(prefix="ludus-bench-"))
    try:
        async with serving(name, slots=2 * sessions, folder=folder) as (client, pid):
            return await _measured(client, pid, played, sessions=sessions, seconds=seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _measured(client: RemoteClient, pid: int, played: Sequence[Played], *, sessions: int, seconds: float) -> Any:
    first = await client.open(played[0].task, seed=played[0].seed)
    await first.start()
    await first.act(played[0].actions[0])
    alone = await asyncio.to_thread(_kib, pid)
    picked = [played[number % len(played)] for number in range(sessions - 1)]
    others = [await client.open(each.task, seed=each.seed) for each in picked]
    await asyncio.gather(*(session.start() for session in others))
    await asyncio.gather(*(session.act(each.actions[0]) for session, each in zip(others, picked, strict=True)))
    together = await asyncio.to_thread(_kib, pid)
    for session in [first, *others]:
        await session.close()
    return {
        "workers_turns_per_s": await _rate(client, played, sessions=sessions, seconds=seconds),
        "kib_per_session": (together - alone) / (sessions - 1),
    }


async def _rate(client: RemoteClient, played: Sequence[Played], *, sessions: int, seconds: float) -> float:
    """Plays rounds of concurrent sessions. Only the time of acting counts, without the first round,
    in which processes warm up, as this one did while the solver played."""
    turns, acting_s, began, rest = -1, 0.0, time.perf_counter(), cycle(played)

    async def play(session: Any, each: Played) -> None:
        for action in each.actions:
            await session.act(action)

    while acting_s < seconds and time.perf_counter() - began < 5 * seconds:
        picked = [next(rest) for _ in range(sessions)]
        live = [await client.open(each.task, seed=each.seed) for each in picked]
        await asyncio.gather(*(session.start() for session in live))
        before = time.perf_counter()
        await asyncio.gather(*(play(session, each) for session, each in zip(live, picked, strict=True)))
        if turns < 0:
            turns, began = 0, time.perf_counter()
        else:
            acting_s += time.perf_counter() - before
            turns += sum(len(each.actions) for each in picked)
        await asyncio.gather(*(session.close() for session in live))
    return turns / acting_s


@contextlib.contextmanager
def _process(command: list[str], *, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


async def _announced(log: Path) -> str:
    """The URL that a server prints when it listens."""
    for _ in range(int(READY_S / 0.05)):
        if found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text()):
            return found.group(0)
        await asyncio.sleep(0.05)
    raise RuntimeError(f"no URL in {log}:\n{log.read_text()}")


def _kib(pid: int) -> float:
    """Memory of a process and its descendants; shared pages are divided among processes."""
    total = 0.0
    for each in _tree(pid):
        with contextlib.suppress(OSError):
            found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{each}/smaps_rollup").read_text(), re.MULTILINE)
            total += float(found.group(1)) if found else 0.0
    return total


def _tree(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        for listed in Path(f"/proc/{each}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, listed.read_text().split())
    return found


# ------------------------------------------------------------ one world, one line


def measure(name: str, *, tasks: int, seconds: float) -> dict[str, Any]:
    sandboxes = Sandboxes()
    try:
        here = Here(name, sandboxes)
        listed = here.world.tasks("test")
        picked = [listed[number * len(listed) // tasks] for number in range(tasks)] if len(listed) > tasks else listed
        with here.session(picked[0], seed=0) as session:
            session.start()
            world_start_s = time.perf_counter() - BEGAN
        solver, randoms = here.play(picked, player="solver"), here.play(picked, player="random")
        turns_per_s, start_ms = here.replay(solver, seconds=seconds)
    finally:
        sandboxes.close()
    sessions = HEAVY.get(name, LIGHT)
    there = asyncio.run(remote(name, solver, sessions=sessions, seconds=seconds))
    line = {
        "case": f"worlds/{name}",
        "ratio": _short(there["workers_turns_per_s"] / turns_per_s),
        "turns_per_s": _short(turns_per_s),
        "workers_turns_per_s": _short(there["workers_turns_per_s"]),
        "sessions": sessions,
        "session_start_ms": _short(start_ms),
        "world_start_s": _short(world_start_s),
        "kib_per_session": _short(max(0.0, there["kib_per_session"])),
        "tasks": len(picked),
        "solver": sum(each.success for each in solver),
        "random": sum(each.success for each in randoms),
    }
    return line | ({"target": TARGETS[name], "met": turns_per_s >= TARGETS[name]} if name in TARGETS else {})


def _short(value: float) -> float:
    """Three significant digits; the fourth is noise."""
    short = float(f"{value:.3g}")
    return int(short) if short >= 100 else short


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--worlds", default=",".join(BUILT_IN), help="comma-separated names (default: all)")
    parser.add_argument(
        "--tasks",
        type=int,
        default=0,
        help="test tasks for solver and random player; 0 (default): 100, or 8 for slow worlds",
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="time to measure each rate, in seconds (default: 1)")
    parser.add_argument(
        "--in-this-process", action="store_true", help="measure in this process instead of one per world"
    )
    given = parser.parse_args()
    for name in given.worlds.split(","):
        if given.in_this_process:
            try:
                line = measure(
                    name, tasks=given.tasks or (8 if HEAVY.get(name, LIGHT) <= 8 else 100), seconds=given.seconds
                )
            except LudusError as error:
                line = {"case": f"worlds/{name}", "skipped": str(error)}
            print(json.dumps(line), flush=True)
        else:
            own = ["--worlds", name, "--tasks", str(given.tasks), "--seconds", str(given.seconds), "--in-this-process"]
            subprocess.run([sys.executable, __file__, *own], check=True)


if __name__ == "__main__":
    main()
