"""Every decision of the controller: which worker hosts which session.

Promise: no slot is given twice, and no session waits while a fit worker is free. Pure: no clock, no
socket, no disk. The server reports each event with its time and carries out the decisions returned.

    ask ──▶ waiting ──Place──▶ opening ──opened──▶ open ──▶ closing ──ended──▶ gone
                └─Refuse (deadline)  └─worker lost: waiting again   (its cause is remembered)
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ludus.controller.records import SessionSpec
from ludus.controller.runtime import not_found
from ludus.controller.service.waiting import Session, Waiting
from ludus.errors import ControllerFailed, WorkerLost

MAX_GONE = 20_000
"""Ended sessions whose cause is remembered."""
SILENT_BEATS = 3


class Place(NamedTuple):
    """Open this session on this worker."""

    session_id: str
    worker_id: str


class Found(NamedTuple):
    """A worker joined with a session that answers this waiting request."""

    asked_id: str
    session_id: str


class Refuse(NamedTuple):
    """Answer the request with this failure."""

    session_id: str
    message: str
    status: int


class Expire(NamedTuple):
    """Close this session on its worker, then report `ended`: its lease expired."""

    session_id: str


class End(NamedTuple):
    """The session is over. Notify its client, unless the client ended it."""

    session_id: str
    cause: str
    message: str


class Again(NamedTuple):
    """The session waits again, because the worker that was opening it is lost or full."""

    session_id: str


class Lose(NamedTuple):
    """This worker is gone; cancel every call to it."""

    worker_id: str
    reason: str


Decision = Place | Found | Refuse | Expire | End | Again | Lose


@dataclass(slots=True)
class Seat:
    """A worker in the roster."""

    worker_id: str
    owner: str
    environments: frozenset[str]
    slots: int
    address: str = ""
    keeps_leases: bool = True
    """Whether the worker enforces leases itself."""
    drained: bool = False
    """Drained by an operator, until undrained."""
    leaving: bool = False
    """Draining itself: it keeps its sessions and takes no new ones."""
    refusing: bool = False
    """It reported that it has no free slot; believed until the next tick."""
    heard: float = 0.0
    away_until: float | None = None
    """Its connection is broken; if it does not return by then, it is lost."""
    sessions: set[str] = field(default_factory=set)

    @property
    def free(self) -> int:
        return max(0, self.slots - len(self.sessions))

    @property
    def fit(self) -> bool:
        return self.free > 0 and not (self.drained or self.leaving or self.refusing) and self.away_until is None


class Gone(NamedTuple):
    client: str
    request_id: str
    cause: str
    message: str


class Roster:
    def __init__(self, *, heartbeat_s: float = 5.0, grace_s: float = 5.0) -> None:
        self.heartbeat_s, self.grace_s = heartbeat_s, grace_s
        self.seats: dict[str, Seat] = {}
        self.sessions: dict[str, Session] = {}
        """Sessions that have a slot."""
        self.waiting = Waiting()
        self.drained: set[str] = set()
        self._hosts: dict[str, dict[str, Seat]] = {}
        self._requests: dict[tuple[str, str], str] = {}
        self._gone: OrderedDict[str, Gone] = OrderedDict()
        self._deadlines: list[tuple[float, str]] = []
        self._leases: list[tuple[float, str]] = []
        self._settled_at: float | None = None

    def get(self, session_id: str) -> Session | None:
        """The session, whether it waits or has a slot."""
        return self.sessions.get(session_id) or self.waiting.get(session_id)

    def find(self, session_id: str, *, client: str) -> Session:
        """The live session; raises the reason why this client cannot use it."""
        session, owner = self.sessions.get(session_id), self.owner(session_id)
        if not owner:
            raise ControllerFailed(
                f"no session {session_id!r} here: it never existed, or it ended long ago; open a new one", status=404
            )
        if owner != client:
            raise ControllerFailed(
                f"session {session_id} is not yours; only the client that opened it may use it", status=403
            )
        if session_id in self.waiting:
            raise ControllerFailed(f"session {session_id} is not open yet; it waits for a slot", status=409)
        if session is None:
            raise self.gone(session_id)
        if session.state == "closing":
            raise ControllerFailed(f"session {session_id} is being closed", status=410)
        return session

    def gone(self, session_id: str) -> ControllerFailed | WorkerLost:
        """The reason why a session is over, as an error."""
        gone = self._gone.get(session_id)
        if gone is None:
            return ControllerFailed(f"no session {session_id!r} here", status=404)
        if gone.cause == "failed":
            return WorkerLost(f"session {session_id} failed: {gone.message}")
        return ControllerFailed(
            f"session {session_id} is over ({gone.cause}{gone.message and ': ' + gone.message})", status=410
        )

    def owner(self, session_id: str) -> str:
        """The client of a session that waits, lives or is remembered; empty for any other."""
        if (session := self.get(session_id)) is not None:
            return session.spec.client
        return self._gone[session_id].client if session_id in self._gone else ""

    def has_ended(self, session_id: str) -> bool:
        return session_id in self._gone

    def requested(self, client: str, request_id: str) -> str | None:
        """The session that this request asked for before, whether it waits, lives or is over."""
        return self._requests.get((client, request_id))

    def environments(self) -> list[str]:
        return sorted(self._hosts)

    def unknown_environment(self, name: str) -> str:
        return not_found(f"no worker has environment {name!r}", name, self._hosts)

    def hosts(self, environment: str) -> list[Seat]:
        """The workers that have it and can be called, the emptiest first."""
        present = [seat for seat in self._hosts.get(environment, {}).values() if seat.away_until is None]
        return sorted(present, key=_emptiness)

    def ask(self, spec: SessionSpec, *, now: float) -> list[Decision]:
        session = Session(spec, deadline=now + spec.wait_s)
        self._requests[spec.client, spec.request_id] = session.id
        settled = self._settled_at is None or now >= self._settled_at
        if settled and session.environment not in self._hosts:
            return [self._refused(session, self.unknown_environment(session.environment), status=404)]
        # if others wait for the same environment, no fit worker is free
        seat = None if self.waiting.has(session.environment) else self._pick(session.environment)
        if seat is not None:
            return [self._place(session, seat)]
        if session.deadline <= now:
            return [self._refused(session, self._nobody_free(session.environment), status=503)]
        self._wait(session)
        return []

    def opened(self, session_id: str, *, now: float) -> bool:
        """False: it was given up or ended meanwhile, so it must be closed."""
        session = self.sessions.get(session_id)
        if session is None or session.state != "opening":
            return False
        session.state = "open"
        self._lease(session, now=now)
        return True

    def not_there(self, session_id: str) -> list[Decision]:
        """Its worker has no free slot: the session waits again, in front, for any worker."""
        session = self.sessions.get(session_id)
        if session is None or session.state != "opening":
            return []
        self.seats[session.worker_id].refusing = True
        return [self._again(session), *self._fill_all()]

    def withdraw(self, session_id: str) -> list[Decision]:
        """Removes a waiting request. A session that has a slot already must be closed instead."""
        session = self.waiting.remove(session_id)
        return [] if session is None else [self._refused(session, "the request was withdrawn", status=410)]

    def renew(self, session_ids: Iterable[str], *, now: float) -> None:
        for session_id in session_ids:
            session = self.sessions.get(session_id)
            if session is not None and session.leased_until is not None:
                session.leased_until = now + session.spec.lease_s

    def ended(self, session_id: str, *, worker_id: str, cause: str, message: str = "") -> list[Decision]:
        """Its slot is free. Ignored from any but its own worker: an old worker may still hold a
        session that was placed elsewhere."""
        session = self.sessions.get(session_id)
        if session is None or session.worker_id != worker_id:
            return []
        return [self._end(session, cause=cause, message=message), *self._fill(self.seats.get(worker_id))]

    def join(self, seat: Seat, *, running: Sequence[SessionSpec] = (), now: float) -> tuple[list[Decision], list[str]]:
        """A worker joins, or joins again. Also returns the sessions that it must close."""
        old = self.seats.get(seat.worker_id)
        if old is not None and old.environments and old.owner != seat.owner:
            raise ControllerFailed(
                f"worker {seat.worker_id!r} belongs to {old.owner!r}; choose another name", status=403
            )
        if old is not None:
            self._unseat(old)
            seat.sessions = old.sessions
        seat.heard, seat.away_until, seat.drained = now, None, seat.worker_id in self.drained
        self.seats[seat.worker_id] = seat
        for name in seat.environments:
            self._hosts.setdefault(name, {})[seat.worker_id] = seat
        decisions, unknown = self._reconcile(seat, running, now=now)
        return decisions + self._fill(seat), unknown

    def heard(self, worker_id: str, *, now: float, leaving: bool = False) -> list[Decision]:
        seat = self.seats.get(worker_id)
        if seat is None:
            return []
        back = seat.leaving and not leaving
        seat.heard, seat.leaving = now, leaving
        return self._fill(seat) if back else []

    def away(self, worker_id: str, *, now: float) -> list[Decision]:
        """Its connection broke. Without sessions it is lost now, else after the grace period."""
        seat = self.seats.get(worker_id)
        if seat is None:
            return []
        if not seat.sessions:
            return self.lost(worker_id, reason="its connection was closed", now=now)
        seat.away_until = now + self.grace_s
        return []

    def lost(self, worker_id: str, *, reason: str, now: float) -> list[Decision]:
        """Its open sessions end as failed; those that were being opened wait again, in front."""
        seat = self.seats.pop(worker_id, None)
        if seat is None:
            return []
        self._unseat(seat)
        decisions: list[Decision] = [Lose(worker_id, reason)]
        for session in sorted((self.sessions[each] for each in seat.sessions), key=_latest_first):
            if session.state == "opening":
                decisions.append(self._again(session))
            else:
                decisions.append(self._end(session, cause="failed", message=f"worker {worker_id} was lost: {reason}"))
        return decisions + self._fill_all() + self._refuse_late(now)

    def drain(self, worker_id: str, *, draining: bool) -> list[Decision]:
        seat = self.seats.get(worker_id)
        if seat is None:
            raise ControllerFailed(not_found(f"no worker {worker_id!r} here", worker_id, self.seats), status=404)
        (self.drained.add if draining else self.drained.discard)(worker_id)
        seat.drained = draining
        return self._fill(seat)

    def restore(self, sessions: Iterable[tuple[SessionSpec, str]], *, now: float) -> None:
        """After a restart: these sessions ran on workers that are expected back. Until then no
        environment is refused as unknown."""
        patience = self.grace_s + SILENT_BEATS * self.heartbeat_s
        self._settled_at = now + patience
        for spec, worker_id in sessions:
            seat = self.seats.get(worker_id)
            if seat is None:
                seat = Seat(worker_id, owner="", environments=frozenset(), slots=0, away_until=now + patience)
                self.seats[worker_id] = seat
            self._add(Session(spec, state="open"), seat)

    def tick(self, now: float) -> list[Decision]:
        """Decides what time alone decides: silent workers, expired leases, passed deadlines. Its
        work is per worker and per event, never per session."""
        decisions: list[Decision] = []
        for seat in list(self.seats.values()):
            if seat.away_until is not None and seat.away_until <= now:
                reason = "its connection broke and it did not come back"
                decisions += self.lost(seat.worker_id, reason=reason, now=now)
            elif seat.away_until is None and seat.heard + SILENT_BEATS * self.heartbeat_s <= now:
                reason = f"silent for {now - seat.heard:.0f} s, {SILENT_BEATS} heartbeats or more"
                decisions += self.lost(seat.worker_id, reason=reason, now=now)
            elif seat.refusing:
                seat.refusing = False
                decisions += self._fill(seat)
        return decisions + self._refuse_late(now) + self._refuse_unknown(now) + self._expire(now)

    def _refuse_late(self, now: float) -> list[Decision]:
        decisions: list[Decision] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, session_id = heapq.heappop(self._deadlines)
            if (session := self.waiting.remove(session_id)) is not None:
                decisions.append(self._refused(session, self._nobody_free(session.environment), status=503))
        return decisions

    def _refuse_unknown(self, now: float) -> list[Decision]:
        if self._settled_at is None or now < self._settled_at:
            return []
        self._settled_at = None
        unknown = [session for session in self.waiting if session.environment not in self._hosts]
        for session in unknown:
            self.waiting.remove(session.id)
        return [self._refused(each, self.unknown_environment(each.environment), status=404) for each in unknown]

    def _expire(self, now: float) -> list[Decision]:
        decisions: list[Decision] = []
        while self._leases and self._leases[0][0] <= now:
            _, session_id = heapq.heappop(self._leases)
            session = self.sessions.get(session_id)
            if session is None or session.leased_until is None or session.state == "closing":
                continue
            if session.leased_until > now or session.num_calls:  # check again when that expires
                again = max(session.leased_until, now + session.spec.lease_s * bool(session.num_calls))
                heapq.heappush(self._leases, (again, session_id))
                continue
            session.state = "closing"
            decisions.append(Expire(session_id))
        return decisions

    def _pick(self, environment: str) -> Seat | None:
        fit = (seat for seat in self._hosts.get(environment, {}).values() if seat.fit)
        return min(fit, key=_emptiness, default=None)

    def _place(self, session: Session, seat: Seat) -> Place:
        session.state = "opening"
        self._add(session, seat)
        return Place(session.id, seat.worker_id)

    def _fill(self, seat: Seat | None) -> list[Decision]:
        """Gives the free slots of one worker to waiting sessions."""
        decisions: list[Decision] = []
        while seat is not None and seat.fit and (session := self.waiting.take(seat.environments.__contains__)):
            decisions.append(self._place(session, seat))
        return decisions

    def _fill_all(self) -> list[Decision]:
        """Sessions that wait again after a loss may fit on any worker, the emptiest first."""
        decisions: list[Decision] = []
        while session := self.waiting.take(lambda environment: self._pick(environment) is not None):
            seat = self._pick(session.environment)
            assert seat is not None
            decisions.append(self._place(session, seat))
        return decisions

    def _reconcile(self, seat: Seat, running: Sequence[SessionSpec], *, now: float) -> tuple[list[Decision], list[str]]:
        decisions: list[Decision] = []
        unknown: list[str] = []
        for session_id in sorted(seat.sessions - {spec.session_id for spec in running}):
            session = self.sessions[session_id]
            if session.state != "opening":  # the call that opens one is repeated now
                message = f"worker {seat.worker_id} came back without it"
                decisions.append(self._end(session, cause="failed", message=message))
        for spec in running:
            if spec.session_id in seat.sessions:
                self._lease(self.sessions[spec.session_id], now=now)
            elif (asked := self._adopt(spec, seat, now=now)) is None:
                unknown.append(spec.session_id)
            elif asked:
                decisions.append(Found(asked, spec.session_id))
        return decisions, unknown

    def _adopt(self, spec: SessionSpec, seat: Seat, *, now: float) -> str | None:
        """Takes over a session that only the worker knows. Returns the waiting request that it
        answers, or an empty string; None means that the worker must close it."""
        asked = self._requests.get((spec.client, spec.request_id), "")
        if spec.session_id in self.sessions or self.has_ended(spec.session_id) or (asked and asked not in self.waiting):
            return None
        if asked:
            self.waiting.remove(asked)
        session = Session(spec, state="open")
        self._add(session, seat)
        self._lease(session, now=now)
        return asked

    def _add(self, session: Session, seat: Seat) -> None:
        assert session.id not in self.sessions, f"session {session.id} would get a second slot"
        session.worker_id = seat.worker_id
        self.sessions[session.id] = session
        self._requests[session.spec.client, session.spec.request_id] = session.id
        seat.sessions.add(session.id)

    def _remove(self, session: Session) -> None:
        del self.sessions[session.id]
        if (seat := self.seats.get(session.worker_id)) is not None:
            seat.sessions.discard(session.id)

    def _again(self, session: Session) -> Again:
        self._remove(session)
        # a new object, so that the task that opens the old one sees that it was given up
        self._wait(Session(session.spec, deadline=session.deadline), in_front=True)
        return Again(session.id)

    def _end(self, session: Session, *, cause: str, message: str) -> End:
        self._remove(session)
        self._gone[session.id] = Gone(session.spec.client, session.spec.request_id, cause, message)
        if len(self._gone) > MAX_GONE:
            session_id, gone = self._gone.popitem(last=False)
            if self._requests.get((gone.client, gone.request_id)) == session_id:
                del self._requests[gone.client, gone.request_id]
        return End(session.id, cause, message)

    def _refused(self, session: Session, message: str, *, status: int) -> Refuse:
        # the same request may be tried again
        self._requests.pop((session.spec.client, session.spec.request_id), None)
        return Refuse(session.id, message, status)

    def _wait(self, session: Session, *, in_front: bool = False) -> None:
        self.waiting.push(session, in_front=in_front)
        heapq.heappush(self._deadlines, (session.deadline, session.id))

    def _lease(self, session: Session, *, now: float) -> None:
        if self.seats[session.worker_id].keeps_leases:
            return
        known = session.leased_until is not None
        session.leased_until = now + session.spec.lease_s
        if not known:
            heapq.heappush(self._leases, (session.leased_until, session.id))

    def _unseat(self, seat: Seat) -> None:
        for name in seat.environments:
            self._hosts.get(name, {}).pop(seat.worker_id, None)

    def _nobody_free(self, environment: str) -> str:
        seats = self._hosts.get(environment, {}).values()
        slots, used = sum(seat.slots for seat in seats), sum(len(seat.sessions) for seat in seats)
        workers = f"{len(seats)} workers with {slots} slots, {used} of them used, have environment {environment!r}"
        return f"no slot became free in time: {workers}; {len(self.waiting)} others wait. Add a worker, or wait longer."


def _latest_first(session: Session) -> tuple[float, str]:
    """Sessions that are put in front one after another end up in their old order."""
    return -session.deadline, session.id


def _emptiness(seat: Seat) -> tuple[float, int, str]:
    return len(seat.sessions) / seat.slots if seat.slots else 1.0, -seat.free, seat.worker_id
