"""The client's view of sessions, wherever they run. In-process and remote sessions look the same from here."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Protocol

from ludus.controller.records import Described
from ludus.types import Action, Observation, Task

TURN_S = 60.0


class ClientSession(Protocol):
    """One live attempt at a task; single use. Failures of the environment's code arrive as EnvironmentFailed, of its host as WorkerLost."""

    async def start(self) -> Observation: ...

    async def act(self, action: Action) -> Observation: ...

    async def solve(self, *, mistakes: float, rng: random.Random) -> Action:
        """The action of the environment's solver or, with chance `mistakes`, a random valid one; ConfigError where it has none."""
        ...

    async def close(self) -> None:
        """Frees everything; safe to call twice and after a failure."""
        ...


class Client(Protocol):
    def environments(self) -> Mapping[str, Described]: ...

    async def tasks(self, environment: str, split: str) -> list[Task]: ...

    async def open(self, task: Task, *, seed: int, timeout_s: float = TURN_S) -> ClientSession:
        """A new session, once there is room for it. `timeout_s` limits each call into the environment's code, this one as TurnTimeout too;
        waiting for room does not count."""
        ...

    async def close(self) -> None: ...
