"""The controller: carries out what the roster decides.

Promise: every call ends, with its answer or the cause; no session is opened twice.

    HTTP (api.py)           ─┐                                  ┌─▶ journal (for a restart)
    websockets (sockets.py) ─┼─▶ Controller ──event──▶ roster ──┤
    AgentRL (agentrl/)      ─┘       ▲                          └─▶ decisions ──▶ workers, clients
                                     └── tick, four times a second

Turns pass through here only for clients that cannot reach a worker. A call to a worker whose
connection breaks is repeated if the worker returns in time; calls carry ids, which makes this safe.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

import msgspec

from ludus.controller import records
from ludus.controller.records import Act, Close, Described, Ended, Open, Opened, Register, SessionSpec, Solve, Start
from ludus.controller.runtime import Background, log
from ludus.controller.service.access import AccessTokens
from ludus.controller.service.journal import Journal
from ludus.controller.service.limits import Rates
from ludus.controller.service.metrics import Metrics
from ludus.controller.service.roster import Again, Decision, End, Expire, Found, Lose, Place, Refuse, Roster, Seat
from ludus.controller.service.waiting import Session
from ludus.controller.service.workers import Worker, WorkerCalls
from ludus.errors import ConfigError, ControllerFailed, LudusError, WorkerLost
from ludus.types import Task
from ludus.wire.codec import VERSION
from ludus.wire.connection import Connection, retrieved

TICK_S = 0.25
LATE_S = 30.0
"""Added to the time limit that a worker enforces itself, before its answer counts as lost."""
CLOSE_S = 10.0
TASKS_S = 120.0
QUIET = frozenset({"closed", "done"})
"""Causes that a client brought about itself, so it is not notified."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    host: str = "127.0.0.1"
    port: int = 0
    """0: a free port."""
    state: str = ""
    """Folder of the journal; empty: only what the workers report survives a restart."""
    tokens: str = ""
    """File of access tokens; empty: LUDUS_TOKEN, or none on loopback."""
    max_request_bytes: int = 16 * 2**20
    max_rate: float = 10_000.0
    """Calls per second and client; 0: no limit."""
    heartbeat_s: float = 5.0
    """A worker that is silent for three of these is lost."""
    grace_s: float = 5.0
    """Seconds in which a worker whose connection broke may return."""
    agentrl_grpc_port: int | None = None
    """Loopback port for AgentRL workers that connect by gRPC; 0: a free port, None: not served."""


class _Pending:
    """An open request without an answer yet; repeats of it wait for the same answer."""

    def __init__(self, *, since: float) -> None:
        self.since, self.waiters = since, 0
        self.future: asyncio.Future[Opened] = asyncio.get_running_loop().create_future()
        self.future.add_done_callback(retrieved)


class Controller:
    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.access_tokens = AccessTokens(file=settings.tokens)
        self.access_tokens.check_host(settings.host)
        self.rates = Rates(settings.max_rate, clock=clock)
        self.roster = Roster(heartbeat_s=settings.heartbeat_s, grace_s=settings.grace_s)
        self.metrics = Metrics(self.roster)
        self.journal = Journal(settings.state)
        self.described: dict[str, Described] = {}
        self.client_connections: dict[str, set[Connection]] = defaultdict(set)
        self._clock = clock
        self._calls = WorkerCalls(is_expected=self.roster.seats.__contains__)
        self._pending: dict[str, _Pending] = {}
        self._tasks: dict[tuple[str, str], tuple[Task, ...]] = {}
        self._background = Background()
        self._leaving = False

    async def begin(self) -> None:
        sessions, drained = self.journal.load()
        self.roster.drained = drained
        self.roster.restore(sessions, now=self._clock())
        self.journal.begin()
        self._background.spawn(self._tick_for_ever())
        log(_log, "controller started", sessions=len(sessions), drained=sorted(drained))

    def leave(self) -> None:
        """Stops losing workers: from now on it is the controller that closes connections."""
        self._leaving = True

    async def end(self) -> None:
        """Sessions continue on their workers; the next controller finds them there."""
        await self._background.cancel()
        await self.journal.close()
        log(_log, "controller stopped", sessions=len(self.roster.sessions))

    async def open(self, request: Open, *, client: str) -> Opened:
        """Queues until a slot is free or `wait_s` has passed. A cancelled caller leaves the queue,
        unless a repeat of its request waits too."""
        answer = self._asked(request, client=client)
        if isinstance(answer, Opened):
            return answer
        answer.waiters += 1
        try:
            return await asyncio.shield(answer.future)
        except asyncio.CancelledError:
            if answer.waiters == 1 and (session_id := self.roster.requested(client, request.request_id)):
                self._do(self.roster.withdraw(session_id))
            raise
        finally:
            answer.waiters -= 1

    def withdraw(self, withdraw: records.Withdraw, *, client: str) -> None:
        session_id = self.roster.requested(client, withdraw.request_id)
        if session_id is None:
            return
        self._do(self.roster.withdraw(session_id))
        session = self.roster.sessions.get(session_id)
        if session is not None and session.state == "open":
            self._background.spawn(self._close_there(session, cause="closed"))
        elif session is not None:
            session.state = "closing"  # `_open_there` sees this and closes it

    async def turn(self, turn: Start | Act | Solve, *, client: str) -> Any:
        """Passes a call on to the session's worker, with its key, and renews the lease."""
        session = self.roster.find(turn.session_id, client=client)
        keyed = msgspec.structs.replace(turn, key=session.spec.key)
        call: Callable[[Worker], Awaitable[Any]] = methodcaller(type(turn).__name__.lower(), keyed)
        session.num_calls += 1
        try:
            return await self._calls.call(session.worker_id, call, limit_s=session.spec.timeout_s + LATE_S)
        except WorkerLost:
            if self.roster.has_ended(session.id):
                raise self.roster.gone(session.id) from None
            raise
        finally:
            session.num_calls -= 1
            self.roster.renew([session.id], now=self._clock())

    async def close(self, close: Close, *, client: str) -> None:
        """Closing a session of this client that is over already succeeds."""
        if self.roster.has_ended(close.session_id) and self.roster.owner(close.session_id) == client:
            return
        await self._close_there(self.roster.find(close.session_id, client=client), cause="closed")

    def renew(self, renew: records.Renew, *, client: str) -> records.Renewed:
        by_worker: dict[str, list[str]] = defaultdict(list)
        over: list[str] = []
        for session_id in renew.session_ids:
            session = self.roster.sessions.get(session_id)
            if session is not None and session.spec.client == client:
                by_worker[session.worker_id].append(session_id)
            else:
                over.append(session_id)
        for worker_id, session_ids in by_worker.items():
            self.roster.renew(session_ids, now=self._clock())
            if (worker := self._calls.get(worker_id)) is not None:
                worker.renew(session_ids)
        return records.Renewed(tuple(over))

    def worker_of(self, session_id: str, *, client: str) -> Worker:
        """For third-party routes that pass calls unchanged to a worker of the same dialect."""
        session = self.roster.find(session_id, client=client)
        worker = self._calls.get(session.worker_id)
        if worker is None:
            raise WorkerLost(f"the connection of worker {session.worker_id} is broken; try again in a moment")
        return worker

    def environments(self) -> tuple[Described, ...]:
        return tuple(self.described[name] for name in self.roster.environments())

    async def tasks(self, ask: records.AskTasks) -> tuple[Task, ...]:
        """All workers of an environment have the same tasks, so one is asked, once."""
        kept = self._tasks.get((ask.environment, ask.split))
        if kept is not None:
            return kept
        if ask.environment not in self.described:
            raise ControllerFailed(self.roster.unknown_environment(ask.environment), status=404)
        seats = self.roster.hosts(ask.environment)
        if not seats:
            raise WorkerLost(f"every worker of environment {ask.environment!r} is gone; wait for one to come back")
        tasks = await self._calls.call(seats[0].worker_id, lambda worker: worker.tasks(ask), limit_s=TASKS_S)
        self._tasks[ask.environment, ask.split] = tasks
        return tasks

    def join(self, worker: Worker, register: Register, *, owner: str) -> records.Registered:
        if register.version != VERSION:
            raise ConfigError(
                f"worker {register.worker_id} speaks protocol {register.version}; this controller speaks {VERSION}"
            )
        if register.slots < 1 or not register.worker_id:
            raise ConfigError(
                f"a worker needs a name and at least one slot; got {register.worker_id!r} with {register.slots}"
            )
        self._check_agreement(register)
        seat = Seat(
            register.worker_id,
            owner=owner,
            environments=frozenset(each.name for each in register.environments),
            slots=register.slots,
            address=register.address,
            keeps_leases=worker.keeps_leases,
        )
        decisions, unknown = self.roster.join(seat, running=register.running, now=self._clock())
        self._calls.joined(worker)
        self._describe(register)
        if seat.drained:
            worker.drain(True)
        for spec in register.running:
            self._note(spec.session_id)
        names, num_sessions = sorted(seat.environments), len(seat.sessions)
        log(_log, "worker joined", worker=worker.id, environments=names, slots=seat.slots, sessions=num_sessions)
        self._do(decisions)
        return records.Registered(self.settings.heartbeat_s, tuple(unknown))

    def heard(self, worker_id: str, *, leaving: bool = False) -> None:
        self._do(self.roster.heard(worker_id, now=self._clock(), leaving=leaving))

    def ended(self, worker_id: str, ended: Ended) -> None:
        self._do(self.roster.ended(ended.session_id, worker_id=worker_id, cause=ended.cause, message=ended.message))

    def away(self, worker: Worker, *, reason: str) -> None:
        """Its connection broke. Does nothing if it has joined again over another one."""
        if not self._calls.left(worker):
            return
        log(_log, "worker disconnected", worker=worker.id, reason=reason)
        self._do(self.roster.away(worker.id, now=self._clock()))

    def lost(self, worker_id: str, *, reason: str) -> None:
        self._do(self.roster.lost(worker_id, reason=reason, now=self._clock()))

    def drain(self, worker_id: str, *, draining: bool) -> None:
        decisions = self.roster.drain(worker_id, draining=draining)
        self.journal.drain(worker_id, draining)
        if (worker := self._calls.get(worker_id)) is not None:
            worker.drain(draining)
        log(_log, "worker drained" if draining else "worker undrained", worker=worker_id)
        self._do(decisions)

    def _check_agreement(self, register: Register) -> None:
        for offered in register.environments:
            known = self.described.get(offered.name)
            others = [seat for seat in self.roster.hosts(offered.name) if seat.worker_id != register.worker_id]
            if known is not None and known != offered and others:
                raise ConfigError(
                    f"worker {register.worker_id} offers {offered.name!r} with options {offered.options}, but "
                    f"{others[0].worker_id} has it with {known.options}: all workers of an environment must agree "
                    "on it; stop one, or give one environment another name"
                )

    def _describe(self, register: Register) -> None:
        for offered in register.environments:
            if self.described.get(offered.name) != offered:
                self.described[offered.name] = offered
                self._tasks = {key: tasks for key, tasks in self._tasks.items() if key[0] != offered.name}

    def _asked(self, request: Open, *, client: str) -> Opened | _Pending:
        session_id = self.roster.requested(client, request.request_id)
        if session_id is None:
            return self._ask(request, client=client)
        session = self.roster.get(session_id)
        if session is None:
            raise self.roster.gone(session_id)
        if session.spec.task.id != request.task.id:
            raise ControllerFailed(
                f"request {request.request_id!r} was for task {session.spec.task.id} before and is now for "
                f"{request.task.id}; use a new id",
                status=409,
            )
        if (pending := self._pending.get(session_id)) is not None:
            return pending
        return self._opened(self.roster.find(session_id, client=client))

    def _ask(self, request: Open, *, client: str) -> _Pending:
        now = self._clock()
        while self.roster.owner(session_id := records.session_id_of(secrets.randbits(records.ID_BITS))):
            pass
        pending = self._pending[session_id] = _Pending(since=now)
        spec = SessionSpec.of(request, session_id=session_id, key=records.new_key(), client=client)
        self._do(self.roster.ask(spec, now=now))
        return pending

    def _opened(self, session: Session) -> Opened:
        address = self.roster.seats[session.worker_id].address
        return Opened(session.id, session.spec.key, worker_id=session.worker_id, address=address)

    def _answer(self, session_id: str, answer: Opened | LudusError) -> None:
        pending = self._pending.pop(session_id, None)
        if pending is None or pending.future.done():
            return
        if isinstance(answer, Opened):
            self.metrics.open_s.observe(self._clock() - pending.since)
            pending.future.set_result(answer)
        else:
            pending.future.set_exception(answer)

    def _do(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Place(session_id, worker_id):
                    placed = self.roster.sessions.get(session_id)
                    if placed is not None and placed.worker_id == worker_id:  # not moved since
                        self._background.spawn(self._open_there(placed))
                case Refuse(session_id, message, status):
                    self._answer(session_id, ControllerFailed(message, status=status))
                case Found(asked_id, session_id):
                    self._answer(asked_id, self._opened(self.roster.sessions[session_id]))
                case Expire(session_id):
                    session = self.roster.sessions[session_id]
                    message = f"no call or renewal for {session.spec.lease_s:g} s"
                    self._background.spawn(self._close_there(session, cause="lease", message=message))
                case End():
                    self._over(decision)
                case Again(session_id):
                    log(_log, "session waits again", session=session_id, level=logging.DEBUG)
                case Lose(worker_id, reason):
                    log(_log, "worker lost", worker=worker_id, reason=reason, level=logging.WARNING)
                    self.metrics.lost.inc()
                    self._calls.give_up(worker_id)

    async def _open_there(self, session: Session) -> None:
        failure: LudusError | None = None
        limit_s = session.spec.timeout_s + LATE_S
        try:
            await self._calls.call(session.worker_id, lambda worker: worker.open(session.spec), limit_s=limit_s)
        except LudusError as error:
            failure = error
        if self.roster.sessions.get(session.id) is not session:
            return  # it was given up, so it waits again or is over
        if isinstance(failure, ControllerFailed) and failure.status == 503:
            self._do(self.roster.not_there(session.id))
        elif failure is not None:
            self._answer(session.id, failure)
            ended = self.roster.ended(session.id, worker_id=session.worker_id, cause="failed", message=str(failure))
            self._do(ended)
        elif self.roster.opened(session.id, now=self._clock()):
            self._note(session.id)
            self._answer(session.id, self._opened(session))
        else:
            await self._close_there(session, cause="closed", message="it was withdrawn while it was being opened")

    async def _close_there(self, session: Session, *, cause: str, message: str = "") -> None:
        """The slot is free once the worker has closed the session, or has not answered in time."""
        session.state = "closing"
        close = Close(session.id, session.spec.key)
        try:
            await self._calls.call(session.worker_id, lambda worker: worker.close(close), limit_s=CLOSE_S)
        except LudusError as error:
            event = "session was not closed by its worker"
            log(_log, event, session=session.id, worker=session.worker_id, reason=str(error))
        if self.roster.sessions.get(session.id) is session:
            self._do(self.roster.ended(session.id, worker_id=session.worker_id, cause=cause, message=message))

    def _over(self, end: End) -> None:
        self.journal.drop(end.session_id)
        self.metrics.ended.labels(cause=end.cause).inc()
        self._answer(end.session_id, self.roster.gone(end.session_id))
        if end.cause not in QUIET:
            for connection in self.client_connections.get(self.roster.owner(end.session_id), ()):
                connection.tell("ended", Ended(*end))

    def _note(self, session_id: str) -> None:
        session = self.roster.sessions.get(session_id)
        if session is not None:
            self.journal.put(session.spec, worker_id=session.worker_id)

    async def _tick_for_ever(self) -> None:
        while not self._leaving:
            self._do(self.roster.tick(self._clock()))
            await asyncio.sleep(TICK_S)
