"""Who hosts what: every decision of the controller. Promise: no slot is given twice, nothing waits while a fit worker is free.

Pure: no clock, no socket, no disk. The server tells what happened, and when; the roster answers with decisions for it to carry out.

    ask ──▶ waiting ──Place──▶ opening ──opened──▶ open ──closing──▶ closing ──ended──▶ gone (remembered for a while, with the cause)
                └─Refuse (deadline)     └─worker lost: waiting again    └─worker lost: gone, as failed
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ludus.controller.service.decisions import Again, Decision, End, Expire, Found, Lose, Place, Refuse
from ludus.controller.service.waiting import Ask, Waiting
from ludus.errors import ControllerFailed, WorkerLost, nearest

State = Literal["opening", "open", "closing"]
MAX_GONE = 20_000
"""Ended sessions that are remembered, so that whoever still asks is told why they ended."""
SILENT_BEATS = 3


@dataclass(slots=True)
class Session:
    """A session that has a slot."""

    ask: Ask
    worker_id: str
    state: State = "opening"
    leased_until: float | None = None
    """Only where the controller keeps the lease."""
    num_calls: int = 0
    """Calls in progress; while there are some, its lease does not run out."""

    @property
    def id(self) -> str:
        return self.ask.session_id


@dataclass(slots=True)
class Seat:
    """A worker as the roster sees it."""

    worker_id: str
    owner: str
    environments: frozenset[str]
    slots: int
    address: str = ""
    keeps_leases: bool = True
    drained: bool = False
    """By an operator, until undrained."""
    leaving: bool = False
    """By itself: it hosts what it has and takes nothing new."""
    refusing: bool = False
    """It said that it has no free slot after all; believed until the next tick."""
    heard: float = 0.0
    away_until: float | None = None
    """Its link is broken; if it is not back by then, it is lost."""
    sessions: set[str] = field(default_factory=set)

    @property
    def free(self) -> int:
        return max(0, self.slots - len(self.sessions))

    @property
    def fit(self) -> bool:
        return self.free > 0 and not (self.drained or self.leaving or self.refusing) and self.away_until is None

    @property
    def load(self) -> float:
        return len(self.sessions) / self.slots


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
        self.waiting = Waiting()
        self.drained: set[str] = set()
        self._hosts: dict[str, dict[str, Seat]] = {}
        self._requests: dict[tuple[str, str], str] = {}
        self._gone: OrderedDict[str, Gone] = OrderedDict()
        self._deadlines: list[tuple[float, str]] = []
        self._leases: list[tuple[float, str]] = []
        self._settled_at: float | None = None

    # -------------------------------------------------------------------------------------------- questions

    def find(self, session_id: str, *, client: str) -> Session:
        """The live session, or the reason why this client cannot have it."""
        session = self.sessions.get(session_id)
        owner = self.owner(session_id)
        if not owner:
            raise ControllerFailed(
                f"no session {session_id!r} here: it never was, or it ended long ago; open a new one", status=404
            )
        if owner != client:
            raise ControllerFailed(f"session {session_id} is not yours; only who opened it may use it", status=403)
        if session_id in self.waiting:
            raise ControllerFailed(f"session {session_id} is not open yet; it waits for a slot", status=409)
        if session is None:
            raise self.gone(session_id)
        if session.state == "closing":
            raise ControllerFailed(f"session {session_id} is being closed", status=410)
        return session

    def gone(self, session_id: str) -> ControllerFailed | WorkerLost:
        """Why a session is over, as an error."""
        gone = self._gone.get(session_id)
        if gone is None:
            return ControllerFailed(f"no session {session_id!r} here", status=404)
        if gone.cause == "failed":
            return WorkerLost(f"session {session_id} failed: {gone.message}")
        return ControllerFailed(
            f"session {session_id} is over ({gone.cause}{gone.message and ': ' + gone.message})", status=410
        )

    def owner(self, session_id: str) -> str:
        """The client of a session that waits, lives or is remembered; nobody, of any other."""
        if session_id in self.sessions:
            return self.sessions[session_id].ask.client
        ask = self.waiting.get(session_id) or self._gone.get(session_id)
        return ask.client if ask is not None else ""

    def has_ended(self, session_id: str) -> bool:
        return session_id in self._gone

    def requested(self, client: str, request_id: str) -> str | None:
        """The session that this request asked for before, whether it waits, lives or is over."""
        return self._requests.get((client, request_id))

    def environments(self) -> list[str]:
        return sorted(self._hosts)

    def hosts(self, environment: str) -> list[Seat]:
        """The workers that have it and can be called, the emptiest first."""
        there = [seat for seat in self._hosts.get(environment, {}).values() if seat.away_until is None]
        return sorted(there, key=_emptiness)

    # -------------------------------------------------------------------------------------------- sessions

    def ask(self, ask: Ask, *, now: float) -> list[Decision]:
        self._requests[ask.client, ask.request_id] = ask.session_id
        if ask.environment not in self._hosts and self._is_settled(now):
            return [self._refused(ask, self._nobody_has(ask.environment), status=404)]
        # Who waits for the same environment waits because no fit worker is free.
        seat = None if self.waiting.has(ask.environment) else self._pick(ask.environment)
        if seat is not None:
            return [self._place(ask, seat)]
        if ask.deadline <= now:
            return [self._refused(ask, self._nobody_free(ask), status=503)]
        self._wait(ask)
        return []

    def opened(self, session_id: str, *, now: float) -> bool:
        """False: it is no longer wanted there (given up or ended meanwhile), so it must be closed."""
        session = self.sessions.get(session_id)
        if session is None or session.state != "opening":
            return False
        session.state = "open"
        self._lease(session, now=now)
        return True

    def not_there(self, session_id: str) -> list[Decision]:
        """Its worker has no slot after all: it waits again, in front, for any worker."""
        session = self.sessions.get(session_id)
        if session is None or session.state != "opening":
            return []
        seat = self.seats[session.worker_id]
        seat.refusing = True
        return [self._again(session), *self._fill_all()]

    def withdraw(self, session_id: str) -> list[Decision]:
        """Nobody waits for it any more. One that has a slot already must be closed instead."""
        ask = self.waiting.remove(session_id)
        return [] if ask is None else [self._refused(ask, "the request was withdrawn", status=410)]

    def renew(self, session_ids: Iterable[str], *, now: float) -> None:
        for session_id in session_ids:
            session = self.sessions.get(session_id)
            if session is not None and session.leased_until is not None:
                session.leased_until = now + session.ask.lease_s

    def closing(self, session_id: str) -> None:
        if session_id in self.sessions:
            self.sessions[session_id].state = "closing"

    def ended(self, session_id: str, *, worker_id: str, cause: str, message: str = "") -> list[Decision]:
        """Its slot is free. A worker speaks for its own sessions only: it may still have one that has moved on."""
        session = self.sessions.get(session_id)
        if session is None or session.worker_id != worker_id:
            return []
        decisions: list[Decision] = [self._end(session, cause=cause, message=message)]
        return decisions + self._fill(self.seats.get(worker_id))

    # -------------------------------------------------------------------------------------------- workers

    def join(self, seat: Seat, *, running: Sequence[Ask] = (), now: float) -> tuple[list[Decision], list[str]]:
        """A worker is here, or here again. The second answer: those of its sessions that it should close, for they ended meanwhile."""
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
        seat.heard = now
        back = seat.leaving and not leaving
        seat.leaving = leaving
        return self._fill(seat) if back else []

    def away(self, worker_id: str, *, now: float) -> list[Decision]:
        """Its link broke. With nothing to lose it goes at once, else it may come back within the grace."""
        seat = self.seats.get(worker_id)
        if seat is None:
            return []
        if not seat.sessions:
            return self.lost(worker_id, reason="its link was closed", now=now)
        seat.away_until = now + self.grace_s
        return []

    def lost(self, worker_id: str, *, reason: str, now: float) -> list[Decision]:
        """Its open sessions end as failed, at once; those that were being opened wait again, in front."""
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
        if worker_id not in self.seats:
            known = sorted(self.seats)
            names = ", ".join(known) or "none"
            raise ControllerFailed(
                f"no worker {worker_id!r} here.{nearest(worker_id, known)} Known: {names}.", status=404
            )
        (self.drained.add if draining else self.drained.discard)(worker_id)
        self.seats[worker_id].drained = draining
        return self._fill(self.seats[worker_id])

    # -------------------------------------------------------------------------------------------- time

    def restore(self, sessions: Iterable[tuple[Ask, str]], *, now: float) -> None:
        """After a restart: these ran on workers that are expected back. Until then, no environment is called unknown."""
        patience = self.grace_s + SILENT_BEATS * self.heartbeat_s
        self._settled_at = now + patience
        for ask, worker_id in sessions:
            seat = self.seats.get(worker_id)
            if seat is None:
                seat = Seat(worker_id, owner="", environments=frozenset(), slots=0, away_until=now + patience)
                self.seats[worker_id] = seat
            self._add(Session(ask, worker_id, state="open"), seat)

    def tick(self, now: float) -> list[Decision]:
        """What time alone decides: silent workers, expired leases, passed deadlines. Work per worker and per event, never per session."""
        decisions: list[Decision] = []
        for seat in list(self.seats.values()):
            if seat.away_until is not None and seat.away_until <= now:
                decisions += self.lost(seat.worker_id, reason="its link broke and it did not come back", now=now)
            elif seat.away_until is None and seat.heard + SILENT_BEATS * self.heartbeat_s <= now:
                silence = f"silent for {now - seat.heard:.0f} s, {SILENT_BEATS} heartbeats or more"
                decisions += self.lost(seat.worker_id, reason=silence, now=now)
            elif seat.refusing:
                seat.refusing = False
                decisions += self._fill(seat)
        return decisions + self._refuse_late(now) + self._refuse_unknown(now) + self._expire(now)

    def _refuse_late(self, now: float) -> list[Decision]:
        decisions: list[Decision] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, session_id = heapq.heappop(self._deadlines)
            ask = self.waiting.get(session_id)
            if ask is not None and ask.deadline <= now:
                self.waiting.remove(session_id)
                decisions.append(self._refused(ask, self._nobody_free(ask), status=503))
        return decisions

    def _refuse_unknown(self, now: float) -> list[Decision]:
        if self._settled_at is None or now < self._settled_at:
            return []
        self._settled_at = None
        nowhere = [ask for ask in self.waiting if ask.environment not in self._hosts]
        for ask in nowhere:
            self.waiting.remove(ask.session_id)
        return [self._refused(ask, self._nobody_has(ask.environment), status=404) for ask in nowhere]

    def _expire(self, now: float) -> list[Decision]:
        decisions: list[Decision] = []
        while self._leases and self._leases[0][0] <= now:
            _, session_id = heapq.heappop(self._leases)
            session = self.sessions.get(session_id)
            if session is None or session.leased_until is None or session.state == "closing":
                continue
            if session.leased_until > now or session.num_calls:  # renewed since: look again when that runs out
                again = max(session.leased_until, now + session.ask.lease_s * bool(session.num_calls))
                heapq.heappush(self._leases, (again, session_id))
                continue
            session.state = "closing"
            decisions.append(Expire(session_id))
        return decisions

    # -------------------------------------------------------------------------------------------- placing

    def _pick(self, environment: str) -> Seat | None:
        return min(
            (seat for seat in self._hosts.get(environment, {}).values() if seat.fit), key=_emptiness, default=None
        )

    def _place(self, ask: Ask, seat: Seat) -> Place:
        self._add(Session(ask, seat.worker_id), seat)
        return Place(ask.session_id, seat.worker_id)

    def _fill(self, seat: Seat | None) -> list[Decision]:
        """Gives the free slots of one worker to those who wait and fit; nobody else's slots have changed."""
        decisions: list[Decision] = []
        while seat is not None and self.waiting and seat.fit:
            ask = self.waiting.take(seat.environments.__contains__)
            if ask is None:
                break
            decisions.append(self._place(ask, seat))
        return decisions

    def _fill_all(self) -> list[Decision]:
        """Those who wait again after a loss may fit on any worker, the emptiest first."""
        decisions: list[Decision] = []
        while self.waiting:
            ask = self.waiting.take(lambda environment: self._pick(environment) is not None)
            if ask is None:
                break
            seat = self._pick(ask.environment)
            assert seat is not None
            decisions.append(self._place(ask, seat))
        return decisions

    def _reconcile(self, seat: Seat, running: Sequence[Ask], *, now: float) -> tuple[list[Decision], list[str]]:
        decisions: list[Decision] = []
        unknown: list[str] = []
        there = {ask.session_id for ask in running}
        for session_id in sorted(seat.sessions - there):
            session = self.sessions[session_id]
            if session.state != "opening":  # one that is being opened: the call is repeated now
                decisions.append(
                    self._end(session, cause="failed", message=f"worker {seat.worker_id} came back without it")
                )
        for ask in running:
            if ask.session_id in seat.sessions:
                self._lease(self.sessions[ask.session_id], now=now)
            elif (asked := self._adopt(ask, seat, now=now)) is None:
                unknown.append(ask.session_id)
            elif asked:
                decisions.append(Found(asked, ask.session_id))
        return decisions, unknown

    def _adopt(self, ask: Ask, seat: Seat, *, now: float) -> str | None:
        """A session that only the worker knows of. None: it must go; else the waiting ask that it answers, or nothing."""
        asked = self._requests.get((ask.client, ask.request_id), "")
        if ask.session_id in self.sessions or self.has_ended(ask.session_id) or (asked and asked not in self.waiting):
            return None
        if asked:
            self.waiting.remove(asked)
        session = Session(ask, seat.worker_id, state="open")
        self._add(session, seat)
        self._lease(session, now=now)
        return asked

    # -------------------------------------------------------------------------------------------- keeping books

    def _add(self, session: Session, seat: Seat) -> None:
        assert session.id not in self.sessions, f"session {session.id} would get a second slot"
        self.sessions[session.id] = session
        self._requests[session.ask.client, session.ask.request_id] = session.id
        seat.sessions.add(session.id)

    def _again(self, session: Session) -> Again:
        del self.sessions[session.id]
        if (seat := self.seats.get(session.worker_id)) is not None:
            seat.sessions.discard(session.id)
        self._wait(session.ask, in_front=True)
        return Again(session.id)

    def _end(self, session: Session, *, cause: str, message: str) -> End:
        del self.sessions[session.id]
        if (seat := self.seats.get(session.worker_id)) is not None:
            seat.sessions.discard(session.id)
        self._remember(session.ask, cause=cause, message=message)
        return End(session.id, cause, message)

    def _remember(self, ask: Ask, *, cause: str, message: str) -> None:
        self._gone[ask.session_id] = Gone(ask.client, ask.request_id, cause, message)
        if len(self._gone) > MAX_GONE:
            session_id, gone = self._gone.popitem(last=False)
            if self._requests.get((gone.client, gone.request_id)) == session_id:
                del self._requests[gone.client, gone.request_id]

    def _refused(self, ask: Ask, message: str, *, status: int) -> Refuse:
        self._requests.pop((ask.client, ask.request_id), None)  # the same request may be tried again
        return Refuse(ask.session_id, message, status)

    def _wait(self, ask: Ask, *, in_front: bool = False) -> None:
        self.waiting.push(ask, in_front=in_front)
        heapq.heappush(self._deadlines, (ask.deadline, ask.session_id))

    def _lease(self, session: Session, *, now: float) -> None:
        if self.seats[session.worker_id].keeps_leases:
            return
        known = session.leased_until is not None
        session.leased_until = now + session.ask.lease_s
        if not known:
            heapq.heappush(self._leases, (session.leased_until, session.id))

    def _unseat(self, seat: Seat) -> None:
        for name in seat.environments:
            self._hosts.get(name, {}).pop(seat.worker_id, None)

    def _is_settled(self, now: float) -> bool:
        return self._settled_at is None or now >= self._settled_at

    def _nobody_has(self, environment: str) -> str:
        known = self.environments()
        return f"no worker has environment {environment!r}.{nearest(environment, known)} Known: {', '.join(known) or 'none'}."

    def _nobody_free(self, ask: Ask) -> str:
        seats = self._hosts.get(ask.environment, {}).values()
        slots, used = sum(seat.slots for seat in seats), sum(len(seat.sessions) for seat in seats)
        workers = f"{len(seats)} workers with {slots} slots, {used} of them used, have environment {ask.environment!r}"
        return f"no slot became free in time: {workers}; {len(self.waiting)} others wait. Add a worker, or wait longer."


def _latest_first(session: Session) -> tuple[float, str]:
    """So that those put back in front of each other end up in their old order."""
    return -session.ask.deadline, session.id


def _emptiness(seat: Seat) -> tuple[float, int, str]:
    return seat.load if seat.slots else 1.0, -seat.free, seat.worker_id
