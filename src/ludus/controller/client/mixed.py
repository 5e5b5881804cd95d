"""One Client for several places: each call goes to the client of its environment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ludus.controller.client.client import TURN_S, Client, ClientSession
from ludus.controller.records import Described
from ludus.controller.runtime import not_found
from ludus.errors import ConfigError
from ludus.types import Task


class MixedClient:
    def __init__(self, clients: Mapping[str, Client]) -> None:
        """The client of each environment, by name; one client may serve several."""
        self._clients = dict(clients)

    @property
    def clients(self) -> list[Client]:
        return list({id(client): client for client in self._clients.values()}.values())

    def environments(self) -> dict[str, Described]:
        return {name: client.environments()[name] for name, client in self._clients.items()}

    async def tasks(self, environment: str, split: str) -> list[Task]:
        return await self._find(environment).tasks(environment, split)

    async def open(self, task: Task, *, seed: int, timeout_s: float = TURN_S) -> ClientSession:
        return await self._find(task.environment).open(task, seed=seed, timeout_s=timeout_s)

    async def close(self) -> None:
        await asyncio.gather(*(client.close() for client in self.clients))

    def _find(self, name: str) -> Client:
        if name not in self._clients:
            raise ConfigError(not_found(f"no environment {name!r} in this run", name, self._clients))
        return self._clients[name]
