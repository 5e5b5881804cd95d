"""The controller: carries out what the roster decides. Promise: every call ends, with its answer or the cause; no session is opened twice.

    HTTP (api.py) ─┐                                   ┌─▶ journal (what a restart must know)
    links (links.py) ─▶ Controller ──event──▶ roster ──┤
    foreign doors  ─┘       ▲                          └─▶ decisions ──▶ workers (workers.py), clients
                            └── tick, four times a second

Turns pass through here only for clients that cannot reach a worker. A call to a worker whose link breaks is repeated when the worker is
back within the grace; that is safe, because every call carries ids by which a worker knows it again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from ludus.controller.records import (
    Act,
    AskTasks,
    Close,
    Described,
    Ended,
    Open,
    Opened,
    OpenHere,
    Register,
    Registered,
    Renew,
    Renewed,
    Running,
    Solve,
    Start,
    Withdraw,
)
from ludus.controller.service.access import Tokens
from ludus.controller.service.calls import Calls
from ludus.controller.service.decisions import Again, Decision, End, Expire, Found, Lose, Place, Refuse
from ludus.controller.service.ids import new_key, new_session_id
from ludus.controller.service.journal import Journal, Row
from ludus.controller.service.limits import Rates
from ludus.controller.service.logs import log
from ludus.controller.service.metrics import Metrics
from ludus.controller.service.roster import Roster, Seat, Session
from ludus.controller.service.waiting import Ask
from ludus.controller.service.worker_proxy import Worker
from ludus.errors import ConfigError, ControllerFailed, LudusError, WorkerLost, nearest
from ludus.types import Action, Observation, Task
from ludus.wire.codec import VERSION
from ludus.wire.connection import Connection

T = TypeVar("T")
TICK_S = 0.25
LATE_S = 30.0
"""Beyond the time limit that a worker keeps itself, until the controller stops waiting for its answer."""
CLOSE_S = 10.0
TASKS_S = 120.0
QUIET = frozenset({"closed", "done"})
"""Causes that a client brought about itself, so nobody needs to tell it."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    host: str = "127.0.0.1"
    port: int = 0
    """0: a free one."""
    state: str = ""
    """Folder of the journal; empty: nothing survives a restart but what the workers tell."""
    tokens: str = ""
    """File of tokens; empty: LUDUS_TOKEN, or none on loopback."""
    max_request_bytes: int = 16 * 2**20
    max_rate: float = 10_000.0
    """Calls per second and client; 0: no limit."""
    heartbeat_s: float = 5.0
    """A worker silent for three of these is lost."""
    grace_s: float = 5.0
    """How long a worker whose link broke may stay away."""
    agentrl_grpc_port: int | None = None
    """For AgentRL workers that connect by gRPC, on loopback; 0: a free one, None: they are not served."""


class _Pending:
    """An open that has not been answered; a repeated one waits for the same answer."""

    __slots__ = ("future", "request", "since", "waiters")

    def __init__(self, request: Open, *, since: float) -> None:
        self.request, self.since = request, since
        self.future: asyncio.Future[Opened] = asyncio.get_running_loop().create_future()
        self.future.add_done_callback(lambda future: future.cancelled() or future.exception())
        self.waiters = 0


class Controller:
    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.tokens = Tokens(file=settings.tokens)
        self.tokens.check_host(settings.host)
        self.rates = Rates(settings.max_rate, clock=clock)
        self.roster = Roster(heartbeat_s=settings.heartbeat_s, grace_s=settings.grace_s)
        self.metrics = Metrics(self.roster)
        self.journal = Journal(settings.state)
        self.described: dict[str, Described] = {}
        self.client_links: dict[str, set[Connection]] = defaultdict(set)
        self._clock = clock
        self._calls = Calls(is_expected=self.roster.seats.__contains__)
        self._pending: dict[str, _Pending] = {}
        self._tasks: dict[tuple[str, str], tuple[Task, ...]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._leaving = False

    async def begin(self) -> None:
        rows, drained = self.journal.load()
        self.roster.drained = drained
        self.roster.restore([(row.ask, row.worker_id) for row in rows], now=self._clock())
        self.journal.begin()
        self._spawn(self._tick_for_ever())
        log(_log, "controller started", sessions=len(rows), drained=sorted(drained))

    def leave(self) -> None:
        """From now on nobody is lost for being late: it is we who hang up, and the next controller finds them where they are."""
        self._leaving = True

    async def end(self) -> None:
        """Sessions go on where they are: a controller started after this one finds them."""
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.journal.close()
        log(_log, "controller stopped", sessions=len(self.roster.sessions))

    # -------------------------------------------------------------------------------------------- clients: sessions

    async def open(self, request: Open, *, client: str) -> Opened:
        """Queues until a slot is free or `wait_s` have passed. A caller that is cancelled gives up its place, unless others wait too."""
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

    def withdraw(self, withdraw: Withdraw, *, client: str) -> None:
        session_id = self.roster.requested(client, withdraw.request_id)
        if session_id is None:
            return
        self._do(self.roster.withdraw(session_id))
        session = self.roster.sessions.get(session_id)
        if session is not None and session.state == "open":
            self._spawn(self._close_there(session, cause="closed"))
        elif session is not None:
            session.state = "closing"  # whoever opens it sees that and closes it

    async def start(self, start: Start, *, client: str) -> Observation:
        session = self.roster.find(start.session_id, client=client)
        keyed = Start(session.id, session.ask.key)
        return await self._relay(session, lambda worker: worker.start(keyed))

    async def act(self, act: Act, *, client: str) -> Observation:
        session = self.roster.find(act.session_id, client=client)
        keyed = msgspec.structs.replace(act, key=session.ask.key)
        return await self._relay(session, lambda worker: worker.act(keyed))

    async def solve(self, solve: Solve, *, client: str) -> Action:
        session = self.roster.find(solve.session_id, client=client)
        keyed = msgspec.structs.replace(solve, key=session.ask.key)
        return await self._relay(session, lambda worker: worker.solve(keyed))

    async def close(self, close: Close, *, client: str) -> None:
        """Closing what is over already is no failure, if it was this client's."""
        if self.roster.has_ended(close.session_id) and self.roster.owner(close.session_id) == client:
            return
        await self._close_there(self.roster.find(close.session_id, client=client), cause="closed")

    def renew(self, renew: Renew, *, client: str) -> Renewed:
        at: dict[str, list[str]] = defaultdict(list)
        over: list[str] = []
        for session_id in renew.session_ids:
            session = self.roster.sessions.get(session_id)
            if session is not None and session.ask.client == client:
                at[session.worker_id].append(session_id)
            else:
                over.append(session_id)
        for worker_id, session_ids in at.items():
            self.roster.renew(session_ids, now=self._clock())
            if (worker := self._calls.get(worker_id)) is not None:
                worker.renew(session_ids)
        return Renewed(tuple(over))

    def worker_of(self, session_id: str, *, client: str) -> Worker:
        """For front doors that pass foreign words to a worker of the same dialect."""
        session = self.roster.find(session_id, client=client)
        worker = self._calls.get(session.worker_id)
        if worker is None:
            raise WorkerLost(f"the link of worker {session.worker_id} is broken; try again in a moment")
        return worker

    # -------------------------------------------------------------------------------------------- clients: environments

    def environments(self) -> tuple[Described, ...]:
        return tuple(self.described[name] for name in self.roster.environments())

    async def tasks(self, ask: AskTasks) -> tuple[Task, ...]:
        """All workers of an environment have the same tasks, so one is asked, once."""
        kept = self._tasks.get((ask.environment, ask.split))
        if kept is not None:
            return kept
        if ask.environment not in self.described:
            known = self.roster.environments()
            names = ", ".join(known) or "none"
            raise ControllerFailed(
                f"no worker has environment {ask.environment!r}.{nearest(ask.environment, known)} Known: {names}.",
                status=404,
            )
        seats = self.roster.hosts(ask.environment)
        if not seats:
            raise WorkerLost(f"every worker of environment {ask.environment!r} is gone; wait for one to come back")
        tasks = await self._calls.call(seats[0].worker_id, lambda worker: worker.tasks(ask), limit_s=TASKS_S)
        self._tasks[ask.environment, ask.split] = tasks
        return tasks

    # -------------------------------------------------------------------------------------------- workers

    def join(self, worker: Worker, register: Register, *, owner: str) -> Registered:
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
        running = [_ask_of_running(each) for each in register.running]
        decisions, unknown = self.roster.join(seat, running=running, now=self._clock())
        self._calls.joined(worker)
        self._describe(register)
        if seat.drained:
            worker.drain(True)
        for ask in running:
            self._note(ask.session_id)
        log(
            _log,
            "worker joined",
            worker=worker.id,
            environments=sorted(seat.environments),
            slots=seat.slots,
            sessions=len(seat.sessions),
        )
        self._do(decisions)
        return Registered(self.settings.heartbeat_s, tuple(unknown))

    def heard(self, worker_id: str, *, leaving: bool = False) -> None:
        self._do(self.roster.heard(worker_id, now=self._clock(), leaving=leaving))

    def ended(self, worker_id: str, ended: Ended) -> None:
        self._do(self.roster.ended(ended.session_id, worker_id=worker_id, cause=ended.cause, message=ended.message))

    def away(self, worker: Worker, *, reason: str) -> None:
        """Its link broke. Nothing, if it has joined again over another."""
        if not self._calls.left(worker):
            return
        log(_log, "worker's link broke", worker=worker.id, reason=reason)
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

    # -------------------------------------------------------------------------------------------- asking

    def _asked(self, request: Open, *, client: str) -> Opened | _Pending:
        session_id = self.roster.requested(client, request.request_id)
        if session_id is None:
            return self._ask(request, client=client)
        pending = self._pending.get(session_id)
        session = self.roster.sessions.get(session_id)
        ask = self.roster.waiting.get(session_id) or (session and session.ask)
        if not ask:
            raise self.roster.gone(session_id)
        if ask.task_id != request.task.id:
            raise ControllerFailed(
                f"request {request.request_id!r} asked for task {ask.task_id} before, now for {request.task.id}; use a new id",
                status=409,
            )
        if pending is not None:
            return pending
        return self._opened(self.roster.find(session_id, client=client).id)

    def _ask(self, request: Open, *, client: str) -> _Pending:
        now = self._clock()
        session_id = new_session_id()
        while self.roster.owner(session_id):
            session_id = new_session_id()
        pending = self._pending[session_id] = _Pending(request, since=now)
        ask = Ask(
            session_id=session_id,
            key=new_key(),
            client=client,
            request_id=request.request_id,
            environment=request.task.environment,
            split=request.task.split,
            task_id=request.task.id,
            deadline=now + request.wait_s,
            lease_s=request.lease_s,
            timeout_s=request.timeout_s,
        )
        self._do(self.roster.ask(ask, now=now))
        return pending

    def _opened(self, session_id: str) -> Opened:
        session = self.roster.sessions[session_id]
        seat = self.roster.seats[session.worker_id]
        return Opened(session_id, session.ask.key, worker_id=session.worker_id, address=seat.address)

    # -------------------------------------------------------------------------------------------- carrying out

    def _do(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Place(session_id, worker_id):
                    self._spawn(self._open_there(session_id, worker_id))
                case Refuse(session_id, message, status):
                    self._answer(session_id, ControllerFailed(message, status=status))
                case Found(asked_id, session_id):
                    self._answer(asked_id, self._opened(session_id))
                case Expire(session_id):
                    session = self.roster.sessions[session_id]
                    lease = f"nobody called or renewed it for {session.ask.lease_s:g} s"
                    self._spawn(self._close_there(session, cause="lease", message=lease))
                case End():
                    self._over(decision)
                case Again(session_id):
                    log(_log, "session waits again", session=session_id, level=logging.DEBUG)
                case Lose(worker_id, reason):
                    log(_log, "worker lost", worker=worker_id, reason=reason, level=logging.WARNING)
                    self.metrics.lost.inc()
                    self._calls.give_up(worker_id)

    async def _open_there(self, session_id: str, worker_id: str) -> None:
        session, pending = self.roster.sessions[session_id], self._pending[session_id]
        here = OpenHere(session_id, session.ask.key, open=pending.request, client=session.ask.client)
        failure: LudusError | None = None
        try:
            await self._calls.call(worker_id, lambda worker: worker.open(here), limit_s=session.ask.timeout_s + LATE_S)
        except LudusError as error:
            failure = error
        if self.roster.sessions.get(session_id) is not session:
            return  # it was given up here: it waits again, or is over, and whoever asked is told then
        if isinstance(failure, ControllerFailed) and failure.status == 503:
            self._do(self.roster.not_there(session_id))
        elif failure is not None:
            self._answer(session_id, failure)
            self._do(self.roster.ended(session_id, worker_id=worker_id, cause="failed", message=str(failure)))
        elif self.roster.opened(session_id, now=self._clock()):
            self._note(session_id)
            self._answer(session_id, self._opened(session_id))
        else:
            await self._close_there(session, cause="closed", message="it was withdrawn while it was being opened")

    async def _close_there(self, session: Session, *, cause: str, message: str = "") -> None:
        """The slot is free when the worker has closed it; one that does not answer is not waited for."""
        session.state = "closing"
        close = Close(session.id, session.ask.key)
        try:
            await self._calls.call(session.worker_id, lambda worker: worker.close(close), limit_s=CLOSE_S)
        except LudusError as error:
            log(
                _log,
                "session was not closed by its worker",
                session=session.id,
                worker=session.worker_id,
                reason=str(error),
            )
        if self.roster.sessions.get(session.id) is session:
            self._do(self.roster.ended(session.id, worker_id=session.worker_id, cause=cause, message=message))

    def _answer(self, session_id: str, answer: Opened | LudusError) -> None:
        pending = self._pending.pop(session_id, None)
        if pending is None or pending.future.done():
            return
        if isinstance(answer, Opened):
            self.metrics.open_s.observe(self._clock() - pending.since)
            pending.future.set_result(answer)
        else:
            pending.future.set_exception(answer)

    def _over(self, end: End) -> None:
        self.journal.drop(end.session_id)
        self.metrics.ended.labels(cause=end.cause).inc()
        self._answer(end.session_id, self.roster.gone(end.session_id))
        if end.cause not in QUIET:
            for link in self.client_links.get(self.roster.owner(end.session_id), ()):
                link.tell("ended", Ended(*end))

    def _note(self, session_id: str) -> None:
        session = self.roster.sessions.get(session_id)
        if session is not None:
            self.journal.put(Row.of(session.ask, worker_id=session.worker_id))

    # -------------------------------------------------------------------------------------------- calling workers

    async def _relay(self, session: Session, what: Callable[[Worker], Awaitable[T]]) -> T:
        """Every call renews the lease."""
        session.num_calls += 1
        try:
            return await self._calls.call(session.worker_id, what, limit_s=session.ask.timeout_s + LATE_S)
        except WorkerLost:
            if self.roster.has_ended(session.id):
                raise self.roster.gone(session.id) from None
            raise
        finally:
            session.num_calls -= 1
            self.roster.renew([session.id], now=self._clock())

    async def _tick_for_ever(self) -> None:
        while not self._leaving:
            self._do(self.roster.tick(self._clock()))
            await asyncio.sleep(TICK_S)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a task of the controller failed", exc_info=error)

    # -------------------------------------------------------------------------------------------- what is on offer

    def _check_agreement(self, register: Register) -> None:
        for offered in register.environments:
            known = self.described.get(offered.name)
            others = [seat for seat in self.roster.hosts(offered.name) if seat.worker_id != register.worker_id]
            if known is not None and known != offered and others:
                raise ConfigError(
                    f"worker {register.worker_id} offers {offered.name!r} with options {offered.options}, but {others[0].worker_id} has it "
                    f"with {known.options}: the workers of an environment must agree in everything; stop one, or give it another name"
                )

    def _describe(self, register: Register) -> None:
        for offered in register.environments:
            if self.described.get(offered.name) != offered:
                self.described[offered.name] = offered
                for kept in [key for key in self._tasks if key[0] == offered.name]:
                    del self._tasks[kept]


def _ask_of_running(running: Running) -> Ask:
    task = running.task
    return Ask(
        session_id=running.session_id,
        key=running.key,
        client=running.client,
        request_id=running.request_id,
        environment=task.environment,
        split=task.split,
        task_id=task.id,
        deadline=0.0,
    )
