"""What travels between client, controller and worker. Promise: what arrives equals what was sent; a failure keeps its name and cause.

    client ──open, tasks──▶ controller ◀──register, heartbeat, ended── worker
       │                        └────────────open, close, drain──────────▶│
       └──────────────start, act, close, renew (one link per worker)──────▶┘

    client -> controller   open, withdraw, environments, tasks, start, act, solve, close, renew       (link /link)
    controller -> client   ended, for sessions that its client did not end
    worker -> controller   register, heartbeat, ended                                            (link /link/worker)
    controller -> worker   open, tasks, start, act, solve, close, renew, drain
    client -> worker       start, act, solve, close, renew                                  (link at Opened.address)

Placement and leases are the controller's; turns go straight to the worker, over one multiplexed connection, or through the controller
where a client cannot reach the worker. A frame is a JSON array of envelopes, so that many small messages cost one send.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from ludus.types import Action, Task
from ludus.wire.codec import VERSION, Record

Id = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=7 * 86400)]


# ------------------------------------------------------------------------------------------------ client <-> controller


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
    """A new session. A repeated `request_id` is answered with the session it opened, not with a second one."""

    task: Task
    seed: int
    request_id: Id
    lease_s: Seconds = 60.0
    """Without a call or a renewal for so long, the session is closed and its slot is free."""
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=7 * 86400)] = 300.0
    """How long to queue for a free slot."""
    timeout_s: Seconds = 60.0
    """Wall clock of each call into the environment's code, kept by the worker."""
    session_timeout_s: Seconds = 3600.0
    """Wall clock of the whole session, kept by the worker too."""


class Opened(Record, frozen=True):
    session_id: str
    key: str
    """Whoever holds it may act on the session."""
    worker_id: str = ""
    address: str = ""
    """Where to link for turns, e.g. ws://127.0.0.1:7101/link; empty: turns go through the controller."""


class Withdraw(Record, frozen=True):
    """Nobody waits for this `Open` any more: it leaves the queue, and a session that it has opened already is closed."""

    request_id: str


# ------------------------------------------------------------------------------------------------ turns: client -> worker (or controller)


class Start(Record, frozen=True):
    session_id: str
    key: str = ""


class Act(Record, frozen=True):
    """`turn` counts from 0. The same turn again with the same request_id is answered with the same observation, and not executed."""

    session_id: str
    turn: int
    action: Action
    request_id: str
    key: str = ""


class Solve(Record, frozen=True):
    """What the environment's own player would do: its solver, or a random valid action drawn with `seed`."""

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
    """Those that are over; there was nothing to renew."""


# ------------------------------------------------------------------------------------------------ worker <-> controller


class Running(Record, frozen=True):
    """A session that a worker hosts, as it tells a controller that has just been (re)started."""

    session_id: str
    request_id: str
    task: Task
    client: str = ""
    key: str = ""


class Register(Record, frozen=True):
    worker_id: str
    environments: tuple[Described, ...]
    slots: int
    """Sessions of all its environments together."""
    address: str = ""
    running: tuple[Running, ...] = ()
    version: int = VERSION


class Registered(Record, frozen=True):
    heartbeat_s: float = 5.0
    """A worker silent for three of these is lost; its sessions end as failed."""
    unknown: tuple[str, ...] = ()
    """Sessions the controller has ended meanwhile; the worker closes them."""


class Heartbeat(Record, frozen=True):
    worker_id: str
    num_sessions: int = 0
    draining: bool = False


class Ended(Record, frozen=True):
    """A session is over on its worker and its slot is free. `cause` is one of closed, done, lease, timeout, failed."""

    session_id: str
    cause: str = "closed"
    message: str = ""


class OpenHere(Record, frozen=True):
    """The controller's placement, told to the worker."""

    session_id: str
    key: str
    open: Open
    client: str = ""


class Drain(Record, frozen=True):
    draining: bool = True
