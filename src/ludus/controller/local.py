"""Sessions in this process, behind the interface of remote ones. Promise: author code that blocks or hangs stalls nobody else."""

from __future__ import annotations

from collections.abc import Iterable

from ludus.environments.environment import Environment
from ludus.environments.host import Host, HostedSession
from ludus.errors import ConfigError, nearest
from ludus.types import Task


class LocalClient:
    """A Client over Environment objects."""

    def __init__(self, environments: Iterable[Environment], *, max_threads: int = 256) -> None:
        self._environments: dict[str, Environment] = {}
        for environment in environments:
            if environment.name in self._environments:
                raise ConfigError(f"two environments are called {environment.name!r}; give one of them another name")
            self._environments[environment.name] = environment
        self._host = Host(max_threads=max_threads)

    def environments(self) -> list[str]:
        return list(self._environments)

    async def tasks(self, environment: str, split: str) -> list[Task]:
        return await self._host.tasks(self._find(environment), split)

    async def open(self, task: Task, *, seed: int) -> HostedSession:
        return await self._host.open(self._find(task.environment), task, seed=seed)

    async def close(self) -> None:
        await self._host.close()

    def _find(self, name: str) -> Environment:
        if name not in self._environments:
            known = self.environments()
            raise ConfigError(
                f"no environment {name!r} here.{nearest(name, known)} Known: {', '.join(known) or 'none'}."
            )
        return self._environments[name]
