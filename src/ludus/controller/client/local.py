"""The Client of environments in this process. Promise: author code that blocks stalls no other.

Each session of an environment with `isolation = "process"` runs in a process of a pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from ludus.controller.client.client import TURN_S
from ludus.controller.records import Described
from ludus.controller.runtime import not_found, within
from ludus.environments.environment import Environment
from ludus.environments.needs import needs_of
from ludus.errors import ConfigError, TurnTimeout
from ludus.hosting.host import Host, HostedSession
from ludus.hosting.process_pool import IsolatedSession, PoolLimits, ProcessPool
from ludus.sandboxes.provider import Sandboxes, need_of
from ludus.types import Task


class LocalClient:
    def __init__(
        self,
        environments: Iterable[Environment],
        *,
        max_threads: int = 256,
        pool_limits: PoolLimits | None = None,
        sandboxes: Sandboxes | None = None,
    ) -> None:
        self._environments: dict[str, Environment] = {}
        for environment in environments:
            if environment.name in self._environments:
                raise ConfigError(f"two environments are called {environment.name!r}; rename one of them")
            self._environments[environment.name] = environment
        self.sandboxes = sandboxes or Sandboxes()
        self.host = Host(max_threads=max_threads, sandboxes=self.sandboxes)
        self._isolated = {name for name, each in self._environments.items() if needs_of(each).isolation == "process"}
        self._pool = ProcessPool((self._environments[name] for name in self._isolated), limits=pool_limits)

    def environments(self) -> dict[str, Described]:
        return {name: described(environment) for name, environment in self._environments.items()}

    async def tasks(self, environment: str, split: str) -> list[Task]:
        if environment in self._isolated:
            return await self._pool.tasks(environment, split)
        return await self.host.tasks(self._find(environment), split)

    async def open(
        self, task: Task, *, seed: int, timeout_s: float = TURN_S, label: str = ""
    ) -> HostedSession | IsolatedSession:
        """`label` names the session's sandbox."""
        if task.environment in self._isolated:
            return await self._pool.open(task, seed=seed, timeout_s=timeout_s, label=label)
        environment = self._find(task.environment)
        async with within(timeout_s, lambda: TurnTimeout(f"opening exceeded {timeout_s:g} s")):
            return await self.host.open(environment, task, seed=seed, timeout_s=timeout_s, label=label)

    async def prepare(self) -> None:
        """Raises now if the process or sandbox of an environment cannot be started."""
        for environment in self._environments.values():
            needs = needs_of(environment)
            if needs.hosted_sandbox:
                await asyncio.to_thread(self.sandboxes.require, need_of(needs.sandbox, image=needs.image))
        await self._pool.prepare()

    async def close(self) -> None:
        await asyncio.gather(self.host.close(), self._pool.close())
        await asyncio.to_thread(self.sandboxes.close)

    async def kill(self) -> None:
        """Ends the isolated sessions' processes only; for a process that exits at once."""
        await self._pool.close()

    def _find(self, name: str) -> Environment:
        if name not in self._environments:
            raise ConfigError(not_found(f"no environment {name!r} here", name, self._environments))
        return self._environments[name]


def described(environment: Environment) -> Described:
    return Described(
        name=environment.name,
        description=environment.description,
        max_turns=environment.max_turns,
        options=dict(environment.options),
        sandbox=needs_of(environment).kind,
    )
