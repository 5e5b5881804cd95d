"""The records that client, controller and worker exchange.

    client ──open, tasks──▶ controller ◀──register, heartbeat, ended── worker
       │                        └────────────open, close, drain──────────▶│
       └────────start, act, close, renew (one connection per worker)─────▶┘

    client -> controller   open, withdraw, environments, tasks, start, act, solve, close, renew
    controller -> client   ended, for sessions that the client did not end itself
    worker -> controller   register, heartbeat, ended
    controller -> worker   open, tasks, start, act, solve, close, renew, drain
    client -> worker       start, act, solve, close, renew

The controller owns placement. Turns go straight to the worker (at Opened.address), or through the
controller where a client cannot reach it. Clients connect at /link, workers at /link/worker.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal

import msgspec

from ludus.types import Action, Task
from ludus.wire.codec import VERSION, Record

ID_BITS = 48
"""A session id is a random 48-bit number in hexadecimal: AgentRL's ids are integers, and a JSON
number may become a float, which holds 53 bits. "00c2a91b74fe" is session 836176770302 there."""
Id = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=7 * 86400)]


def new_key() -> str:
    return secrets.token_urlsafe(16)


def number_of(session_id: str) -> int:
    return int(session_id, 16)


def session_id_of(number: int) -> str:
    return f"{number:0{ID_BITS // 4}x}"


class Described(Record, frozen=True):
    """An environment on offer. All its workers agree on it."""

    name: str
    description: str = ""
    max_turns: int | None = None
    options: dict[str, Any] = {}
    splits: tuple[str, ...] = ("train", "test")
    sandbox: str = "none"


class AskTasks(Record, frozen=True):
    environment: str
    split: str


class Open(Record, frozen=True):
    """A request for a new session. A repeated `request_id` gets the session opened before."""

    task: Task
    seed: int
    request_id: Id
    lease_s: Seconds = 60.0
    """The session is closed after this many seconds without a call or a renewal."""
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=7 * 86400)] = 300.0
    """Seconds to queue for a free slot."""
    timeout_s: Seconds = 60.0
    """Wall-clock limit of each call into the environment's code, enforced by the worker."""
    session_timeout_s: Seconds = 3600.0
    """Wall-clock limit of the whole session, enforced by the worker."""


class SessionSpec(Open, frozen=True, kw_only=True):
    """A requested session: the request, the id and key given to it, and its client.

    The same record waits in the queue, opens the session on its worker, is written to the journal,
    and reports to a restarted controller what a worker hosts."""

    session_id: str
    key: str = ""
    client: str = ""

    @classmethod
    def of(cls, request: Open, *, session_id: str, key: str, client: str) -> SessionSpec:
        return cls(**msgspec.structs.asdict(request), session_id=session_id, key=key, client=client)


class Opened(Record, frozen=True):
    session_id: str
    key: str
    """The key permits calls on the session."""
    worker_id: str = ""
    address: str = ""
    """Websocket URL for turns, e.g. ws://127.0.0.1:7101/link; empty: through the controller."""


class Withdraw(Record, frozen=True):
    """Cancels an `Open`: it leaves the queue, and a session that it has opened is closed."""

    request_id: str


class Start(Record, frozen=True):
    session_id: str
    key: str = ""


class Act(Record, frozen=True):
    """One turn; `turn` counts from 0. A repeat with the same turn and request_id is not executed
    again: it gets the same observation."""

    session_id: str
    turn: int
    action: Action
    request_id: str
    key: str = ""


class Solve(Record, frozen=True):
    """Asks for the action of the environment's solver, or a random one drawn with `seed`."""

    session_id: str
    player: Literal["solve", "random_action"] = "solve"
    seed: int = 0
    key: str = ""


class Close(Record, frozen=True):
    session_id: str
    key: str = ""


class Renew(Record, frozen=True):
    session_ids: tuple[str, ...]


class Renewed(Record, frozen=True):
    ended: tuple[str, ...] = ()
    """Sessions that are over and were not renewed."""


class Register(Record, frozen=True):
    worker_id: str
    environments: tuple[Described, ...]
    slots: int
    """Concurrent sessions of all its environments together."""
    address: str = ""
    running: tuple[SessionSpec, ...] = ()
    version: int = VERSION


class Registered(Record, frozen=True):
    heartbeat_s: float = 5.0
    """A worker that is silent for three of these is lost; its sessions end as failed."""
    unknown: tuple[str, ...] = ()
    """Sessions that the controller has ended meanwhile; the worker closes them."""


class Heartbeat(Record, frozen=True):
    worker_id: str
    num_sessions: int = 0
    draining: bool = False


class Ended(Record, frozen=True):
    """A session is over on its worker and its slot is free."""

    session_id: str
    cause: str = "closed"
    """closed, done, lease, timeout or failed."""
    message: str = ""


class Drain(Record, frozen=True):
    draining: bool = True
