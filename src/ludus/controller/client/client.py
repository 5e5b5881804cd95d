"""The interface of clients and their sessions, the same for in-process and remote sessions."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Protocol

from ludus.controller.records import Described
from ludus.types import Action, Observation, Task

TURN_S = 60.0


class ClientSession(Protocol):
    """One live attempt at a task; single use. Raises EnvironmentFailed where the environment's code
    fails, WorkerLost where its host does."""

    async def start(self) -> Observation: ...

    async def act(self, action: Action) -> Observation: ...

    async def solve(self, *, mistakes: float, rng: random.Random) -> Action:
        """The solver's action; with probability `mistakes`, a random one. ConfigError if none."""

    async def close(self) -> None:
        """Frees everything. Idempotent, also after a failure."""


class Client(Protocol):
    def environments(self) -> Mapping[str, Described]: ...

    async def tasks(self, environment: str, split: str) -> list[Task]: ...

    async def open(self, task: Task, *, seed: int, timeout_s: float = TURN_S) -> ClientSession:
        """A new session, once a slot is free. `timeout_s` limits each call into the environment's
        code, including this one (TurnTimeout), but not the wait for a slot."""

    async def close(self) -> None: ...
