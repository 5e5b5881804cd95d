"""What the roster decides and the server carries out, one record each."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """Open this session on this worker."""

    session_id: str
    worker_id: str


class Found(NamedTuple):
    """A worker came (back) with a session that answers this waiting ask."""

    asked_id: str
    session_id: str


class Refuse(NamedTuple):
    """Tell whoever waits for it that it will not be."""

    session_id: str
    message: str
    status: int


class Expire(NamedTuple):
    """Close this session on its worker, then tell `ended`: its lease ran out, and its worker does not keep leases itself."""

    session_id: str


class End(NamedTuple):
    """The session is over. Tell its client, unless the client ended it."""

    session_id: str
    cause: str
    message: str


class Again(NamedTuple):
    """The worker that should have opened it is lost; it waits again."""

    session_id: str


class Lose(NamedTuple):
    """This worker is gone; give up every call to it."""

    worker_id: str
    reason: str


Decision = Place | Found | Refuse | Expire | End | Again | Lose
