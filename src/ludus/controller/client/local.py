"""Sessions in this process, behind the interface of remote ones. Promise: author code that blocks or hangs stalls nobody else.

Environments that ask for it (`isolation = "process"`) get a process for each session, from the same pool that a worker has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from ludus.controller.client.client import TURN_S
from ludus.controller.records import Described
from ludus.environments.environment import Environment
from ludus.environments.needs import needs_of
from ludus.errors import ConfigError, TurnTimeout, nearest
from ludus.hosting.host import Host, HostedSession
from ludus.hosting.process_pool import IsolatedSession, PoolLimits, ProcessPool
from ludus.sandboxes.provider import Sandboxes, need_of
from ludus.types import Task


class LocalClient:
    """A Client over Environment objects."""

    def __init__(
        self,
        environments: Iterable[Environment],
        *,
        max_threads: int = 256,
        pens: PoolLimits | None = None,
        sandboxes: Sandboxes | None = None,
    ) -> None:
        self._environments: dict[str, Environment] = {}
        for environment in environments:
            if environment.name in self._environments:
                raise ConfigError(f"two environments are called {environment.name!r}; give one of them another name")
            self._environments[environment.name] = environment
        self.sandboxes = sandboxes or Sandboxes()
        self.host = Host(max_threads=max_threads, sandboxes=self.sandboxes)
        self._apart = {name for name, each in self._environments.items() if needs_of(each).isolation == "process"}
        self._pens = ProcessPool((self._environments[name] for name in self._apart), limits=pens)

    def environments(self) -> dict[str, Described]:
        return {name: described(environment) for name, environment in self._environments.items()}

    async def tasks(self, environment: str, split: str) -> list[Task]:
        found = self._find(environment)
        return await (
            self._pens.tasks(environment, split) if environment in self._apart else self.host.tasks(found, split)
        )

    async def open(
        self, task: Task, *, seed: int, timeout_s: float = TURN_S, label: str = ""
    ) -> HostedSession | IsolatedSession:
        """`label` names the session's sandbox."""
        if task.environment in self._apart:
            return await self._pens.open(task, seed=seed, timeout_s=timeout_s, label=label)
        environment, clock = self._find(task.environment), asyncio.timeout(timeout_s)
        try:
            async with clock:
                return await self.host.open(environment, task, seed=seed, timeout_s=timeout_s, label=label)
        except TimeoutError:
            if not clock.expired():
                raise
            raise TurnTimeout(f"opening exceeded {timeout_s:g} s") from None

    async def prepare(self) -> None:
        """Fails now where an environment's own process or sandbox could not be started later."""
        for environment in self._environments.values():
            needs = needs_of(environment)
            if needs.hosted_sandbox:
                await asyncio.to_thread(self.sandboxes.require, need_of(needs.sandbox, image=needs.image))
        await self._pens.prepare()

    async def close(self) -> None:
        await asyncio.gather(self.host.close(), self._pens.close())
        await asyncio.to_thread(self.sandboxes.close)

    async def kill(self) -> None:
        """Ends the processes of sessions that have their own, and leaves the others as they are: for a process that ends at once."""
        await self._pens.close()

    def _find(self, name: str) -> Environment:
        if name not in self._environments:
            known = list(self._environments)
            raise ConfigError(
                f"no environment {name!r} here.{nearest(name, known)} Known: {', '.join(known) or 'none'}."
            )
        return self._environments[name]


def described(environment: Environment) -> Described:
    return Described(
        name=environment.name,
        description=environment.description,
        max_turns=environment.max_turns,
        options=dict(environment.options),
        sandbox=needs_of(environment).kind,
    )
