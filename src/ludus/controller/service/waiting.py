"""Requested sessions and the queue of those that wait for a slot.

Promise: environments take turns, clients take turns within an environment, and a client's requests
are served in order. The queue is nested: environment ──▶ client ──▶ session. The head of each level
is served and, while more of it waits, moves to the end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from ludus.controller.records import SessionSpec

State = Literal["waiting", "opening", "open", "closing"]


@dataclass(slots=True, eq=False)
class Session:
    """A session in the roster. Times are of the roster's clock."""

    spec: SessionSpec
    deadline: float = 0.0
    """When to stop waiting for a slot."""
    worker_id: str = ""
    state: State = "waiting"
    leased_until: float | None = None
    """Set only where the controller enforces the lease."""
    num_calls: int = 0
    """Calls in progress. The lease does not expire while there are any."""

    @property
    def id(self) -> str:
        return self.spec.session_id

    @property
    def environment(self) -> str:
        return self.spec.task.environment


class Waiting:
    def __init__(self) -> None:
        self._environments: OrderedDict[str, OrderedDict[str, OrderedDict[str, Session]]] = OrderedDict()
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._sessions

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def get(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    def has(self, environment: str) -> bool:
        return environment in self._environments

    def counts(self) -> dict[str, int]:
        return {name: sum(map(len, clients.values())) for name, clients in self._environments.items()}

    def push(self, session: Session, *, in_front: bool = False) -> None:
        """`in_front`: before its client's other sessions, for one that had a slot and lost it."""
        clients = self._environments.setdefault(session.environment, OrderedDict())
        own = clients.setdefault(session.spec.client, OrderedDict())
        own[session.id] = self._sessions[session.id] = session
        if in_front:
            own.move_to_end(session.id, last=False)

    def remove(self, session_id: str) -> Session | None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            clients = self._environments[session.environment]
            own = clients[session.spec.client]
            del own[session_id]
            if not own:
                del clients[session.spec.client]
            if not clients:
                del self._environments[session.environment]
        return session

    def take(self, fits: Callable[[str], bool]) -> Session | None:
        """Removes and returns the next session of the next environment that fits."""
        environment = next(filter(fits, self._environments), None)
        if environment is None:
            return None
        clients = self._environments[environment]
        client, own = next(iter(clients.items()))
        session = self.remove(next(iter(own)))
        if client in clients:
            clients.move_to_end(client)
        if environment in self._environments:
            self._environments.move_to_end(environment)
        return session
