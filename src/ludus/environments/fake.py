"""A tiny environment with faults, for tests and benchmarks. The seed decides every fault.

make("fake", source="ludus.environments.fake:FakeEnvironment", options={"fault": "hang"})
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from ludus.environments.environment import EnvironmentBase
from ludus.types import Action, Message, Observation, Task

Fault = Literal["none", "raise", "exit", "hang", "nan", "megabyte", "nothing", "number", "surrogate"]
Place = Literal["tasks", "open", "start", "act", "close"]
WORDS = ("red", "blue", "green", "gold", "grey", "pink", "black", "white")


@dataclass(kw_only=True)
class FakeEnvironment(EnvironmentBase):
    """Shows a word; the action that repeats it earns 1 / turns. `blocking`: sleep on a thread.

    fault_rate: share of calls that fail; latency_s: median; tail: its Pareto exponent.
    """

    description = "Repeat the word."
    name: str = "fake"
    turns: int = 3
    num_tasks: int = 100
    blocking: bool = True
    fault: Fault = "none"
    fault_in: Place = "act"
    fault_rate: float = 1.0
    latency_s: float = 0.0
    tail: float = 1.5
    hang_s: float = 3600.0

    def __post_init__(self) -> None:
        self.max_turns = self.turns
        self.options = {name: value for name, value in asdict(self).items() if name != "name"}

    def tasks(self, split: str) -> list[Task]:
        self.go_wrong("tasks", random.Random(split))
        kept = [i for i in range(self.num_tasks) if (i % 5 == 0) == (split == "test")]
        words = {i: [WORDS[(i + 3 * turn) % len(WORDS)] for turn in range(self.turns)] for i in kept}
        return [Task(f"{self.name}/{split}/{i}", self.name, split, {"number": i, "words": words[i]}) for i in kept]

    def open(self, task: Task, *, seed: int, sandbox: Any = None) -> FakeSession:
        self.go_wrong("open", random.Random(seed))
        return (FakeSession if self.blocking else AsyncFakeSession)(self, task, seed=seed)

    def latency(self, rng: random.Random) -> float:
        return self.latency_s * rng.paretovariate(self.tail) / 2 ** (1 / self.tail) if self.latency_s else 0.0

    def go_wrong(self, place: Place, rng: random.Random) -> Any:
        """Raises, or returns the wrong answer to give; None if this call has no fault."""
        if self.fault == "none" or self.fault_in != place or rng.random() >= self.fault_rate:
            return None
        if self.fault == "raise":
            raise RuntimeError("the fake raised, as ordered")
        if self.fault == "exit":
            sys.exit("the fake left, as ordered")
        return _WRONG[self.fault]


class FakeSession:
    def __init__(self, environment: FakeEnvironment, task: Task, *, seed: int) -> None:
        self.environment = environment
        self.words = list(task.data["words"])
        self.rng = random.Random(seed)
        self.turn = 0
        self.num_closed = 0

    def start(self) -> Any:
        return _slept(*self.plan_start())

    def act(self, action: Action) -> Any:
        return _slept(*self.plan_act(action))

    def close(self) -> Any:
        _slept(self.plan_close())
        self.num_closed += 1

    def solve(self) -> Action:
        return Action(content=self.words[self.turn])

    def random_action(self, rng: random.Random) -> Action:
        return Action(content=rng.choice(WORDS))

    def plan_start(self) -> tuple[float, Any]:
        messages = (Message("system", self.environment.description), Message("user", self.words[0]))
        return self._plan("start", Observation(messages=messages, tools=()))

    def plan_act(self, action: Action) -> tuple[float, Any]:
        right = action.content.strip() == self.words[self.turn]
        self.turn += 1
        done = self.turn == len(self.words)
        message = Message("user", "end" if done else self.words[self.turn])
        return self._plan("act", Observation(messages=(message,), reward=right / len(self.words), done=done))

    def plan_close(self) -> float:
        return self.environment.hang_s if self.environment.go_wrong("close", self.rng) == "hang" else 0.0

    def _plan(self, place: Place, observation: Observation) -> tuple[float, Any]:
        wait_s = self.environment.latency(self.rng)
        wrong = self.environment.go_wrong(place, self.rng)
        if wrong == "hang":
            return self.environment.hang_s, observation
        return wait_s, (observation if wrong is None else wrong)


class AsyncFakeSession(FakeSession):
    """A FakeSession with async methods."""

    async def start(self) -> Any:
        return await asyncio.sleep(*self.plan_start())

    async def act(self, action: Action) -> Any:
        return await asyncio.sleep(*self.plan_act(action))

    async def close(self) -> None:
        await asyncio.sleep(self.plan_close())
        self.num_closed += 1


def _slept(wait_s: float, observation: Any = None) -> Any:
    if wait_s:  # sleep(0) would still yield the processor
        time.sleep(wait_s)
    return observation


_WRONG: dict[str, Any] = {
    "hang": "hang",
    "nan": Observation(messages=(Message("user", "word"),), reward=float("nan")),
    "megabyte": Observation(messages=(Message("user", "word " * 200_000),)),
    "nothing": Observation(messages=(Message("user", None),)),  # type: ignore[arg-type]
    "number": 42,
    "surrogate": Observation(messages=(Message("user", "\ud800"),)),
}
assert set(get_args(Fault)) == {*_WRONG, "none", "raise", "exit"}
