"""Plays an environment without a model, and repeats the same actions, here or in another process.

`python -m ludus.checks.trial` is that process: JSON trials in, fingerprints out.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ludus.environments.environment import Environment
from ludus.environments.registry import make, search_path
from ludus.errors import EnvironmentFailed, TurnTimeout
from ludus.hosting.host import Host
from ludus.plugins import resolve
from ludus.types import Action, Observation, Task

Actions = Sequence[Action] | None
MAX_TURNS = 32
"""For an environment without a limit of its own."""
TURN_S = 30.0
"""Enough to start a JVM or a browser on a busy machine."""


@dataclass(frozen=True)
class Trial:
    """A session played to its end: the first observation, then one per action."""

    task: Task
    seed: int
    actions: tuple[Action, ...]
    observations: tuple[Observation, ...]

    @property
    def done(self) -> bool:
        return self.observations[-1].done

    @property
    def reward(self) -> float:
        return sum(observation.reward for observation in self.observations)

    @property
    def success(self) -> bool:
        metrics = {name: value for observation in self.observations for name, value in observation.metrics.items()}
        return metrics.get("success", float(self.reward >= 1 - 1e-6)) > 0

    @property
    def print(self) -> str:
        return fingerprint(self.observations)


async def play(
    environment: Environment, task: Task, *, host: Host, seed: int, actions: Actions = None, mistakes: float = 0.0
) -> Trial:
    """Plays `actions` until they or the session end; without them the solver, or with `mistakes`
    1.0 a random player."""
    turns = environment.max_turns or MAX_TURNS if actions is None else len(actions)
    rng, played = random.Random(seed), list[Action]()
    session = await in_time(host.open(environment, task, seed=seed), where=f"{task.id}: open")
    try:
        observations = [await in_time(session.start(), where=f"{task.id}: start")]
        while not observations[-1].done and len(played) < turns:
            if actions is None:
                played.append(await in_time(session.solve(mistakes=mistakes, rng=rng), where=f"{task.id}: choosing"))
            else:
                played.append(actions[len(played)])
            observations.append(await in_time(session.act(played[-1]), where=f"{task.id}: act"))
    finally:
        await session.close()
    return Trial(task, seed, tuple(played), tuple(observations))


async def in_time(work: Any, *, where: str) -> Any:
    try:
        async with asyncio.timeout(TURN_S):
            return await work
    except TimeoutError:
        raise TurnTimeout(f"{where} did not return within {TURN_S:.0f} s") from None


def fingerprint(value: Any) -> str:
    """A hash that is equal for equal content, in any process."""
    plain = [dataclasses.asdict(item) for item in value]
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=repr).encode("utf-8", "surrogatepass")).hexdigest()


def repeat_elsewhere(
    environment: Environment, trials: list[Trial], *, splits: list[str], source: str, sandboxes: str, timeout_s: float
) -> list[str]:
    """Fingerprints of tasks and trials, from a new process with another hash seed. `source` and
    `sandboxes` name the classes of the environment and of the sandbox provider."""
    wanted: dict[str, Any] = {"name": environment.name, "source": source, "options": dict(environment.options)}
    wanted |= {"splits": splits, "sandboxes": sandboxes}
    wanted["trials"] = [
        {"id": trial.task.id, "seed": trial.seed, "actions": [dataclasses.asdict(action) for action in trial.actions]}
        for trial in trials
    ]
    other = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    try:
        answer = subprocess.run(
            [sys.executable, "-m", "ludus.checks.trial"],
            input=json.dumps(wanted), capture_output=True, text=True, timeout=timeout_s, check=False,
            env=os.environ | {"PYTHONHASHSEED": other, "PYTHONPATH": search_path()},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise EnvironmentFailed(f"another process did not finish the same trials within {timeout_s:.0f} s") from None
    if answer.returncode:
        raise EnvironmentFailed(f"another process failed: {(answer.stderr.strip().splitlines() or ['no message'])[-1]}")
    prints: list[str] = json.loads(answer.stdout.splitlines()[-1])
    return prints


async def _repeat_all(wanted: dict[str, Any]) -> list[str]:
    environment = make(wanted["name"], source=wanted["source"], options=wanted["options"])
    tasks = {task.id: task for split in wanted["splits"] for task in environment.tasks(split)}
    sandboxes = resolve(wanted["sandboxes"])() if wanted["sandboxes"] else None
    host, prints = Host(sandboxes=sandboxes), [fingerprint(tasks.values())]
    try:
        for trial in wanted["trials"]:
            actions = msgspec.convert(trial["actions"], list[Action])
            again = await play(environment, tasks[trial["id"]], host=host, seed=trial["seed"], actions=actions)
            prints.append(again.print)
    finally:
        await host.close()
        if sandboxes is not None:
            sandboxes.close()
    return prints


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_repeat_all(json.load(sys.stdin)))))
