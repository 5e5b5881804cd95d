"""The client's view of sessions, wherever they run. In-process and remote sessions look the same from here."""

from __future__ import annotations

from typing import Protocol

from ludus.types import Action, Observation, Task


class ClientSession(Protocol):
    """One live attempt at a task; single use. Failures of the environment's code arrive as EnvironmentFailed, never as anything else."""

    async def start(self) -> Observation: ...

    async def act(self, action: Action) -> Observation: ...

    async def close(self) -> None:
        """Frees everything; safe to call twice and after a failure."""
        ...


class Client(Protocol):
    def environments(self) -> list[str]: ...

    async def tasks(self, environment: str, split: str) -> list[Task]: ...

    async def open(self, task: Task, *, seed: int) -> ClientSession: ...

    async def close(self) -> None: ...
