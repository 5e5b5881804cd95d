"""Sessions that wait for a slot. Promise: environments take turns, within an environment clients do, and a client's own go in order.

environment ──▶ client ──▶ session, each level a line whose head is served and, while more of it waits, goes to the end
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ask:
    """A wish for a session. `deadline` is a time of the roster's clock."""

    session_id: str
    key: str
    client: str
    request_id: str
    environment: str
    split: str
    task_id: str
    deadline: float
    lease_s: float = 60.0
    timeout_s: float = 60.0


class Waiting:
    def __init__(self) -> None:
        self._environments: OrderedDict[str, OrderedDict[str, OrderedDict[str, Ask]]] = OrderedDict()
        self._asks: dict[str, Ask] = {}

    def __len__(self) -> int:
        return len(self._asks)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._asks

    def __iter__(self) -> Iterator[Ask]:
        return iter(self._asks.values())

    def get(self, session_id: str) -> Ask | None:
        return self._asks.get(session_id)

    def has(self, environment: str) -> bool:
        return environment in self._environments

    def counts(self) -> dict[str, int]:
        return {name: sum(map(len, clients.values())) for name, clients in self._environments.items()}

    def push(self, ask: Ask, *, in_front: bool = False) -> None:
        """`in_front`: of its own client's others, for one that had a place already and lost it."""
        clients = self._environments.setdefault(ask.environment, OrderedDict())
        line = clients.setdefault(ask.client, OrderedDict())
        line[ask.session_id] = self._asks[ask.session_id] = ask
        if in_front:
            line.move_to_end(ask.session_id, last=False)

    def remove(self, session_id: str) -> Ask | None:
        ask = self._asks.pop(session_id, None)
        if ask is not None:
            self._leave(ask)
        return ask

    def take(self, fits: Callable[[str], bool]) -> Ask | None:
        """The next in turn among the environments that fit, which is thereby served."""
        environment = next(filter(fits, self._environments), None)
        if environment is None:
            return None
        clients = self._environments[environment]
        client, line = next(iter(clients.items()))
        ask = next(iter(line.values()))
        del self._asks[ask.session_id]
        self._leave(ask)
        if client in clients:
            clients.move_to_end(client)
        if environment in self._environments:
            self._environments.move_to_end(environment)
        return ask

    def _leave(self, ask: Ask) -> None:
        clients = self._environments[ask.environment]
        line = clients[ask.client]
        del line[ask.session_id]
        if not line:
            del clients[ask.client]
        if not clients:
            del self._environments[ask.environment]
