"""The live sessions of a worker. Promise: a call is executed once, alone, in its time limit.

    open ──▶ live ──start, act, solve──▶ live ──close──▶ over: the slot is free, `ended` is reported
               │  └─ a call or the session timed out: its code is stopped at once, and it is over
               │     when the client closes it, or after BROKEN_S
               └─ no call and no renewal for a whole lease ──▶ over

A call runs in its own task: it continues when its client's connection breaks, and the same call
over the next connection joins it.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from ludus.controller.client.local import LocalClient
from ludus.controller.records import Act, Close, Ended, Renew, Renewed, SessionSpec, Solve, Start
from ludus.errors import ControllerFailed, LudusError, TurnTimeout, WorkerLost
from ludus.types import Action, Observation
from ludus.wire.codec import Fault, error_of, fault_of
from ludus.wire.connection import detached

T = TypeVar("T")
BROKEN_S = 5.0
"""Seconds in which the client may close a session that timed out, before the worker does."""
MAX_REMEMBERED = 10_000
"""Ended sessions whose cause is remembered."""


class Sessions:
    """`on_ended` is called for every session whose slot is free again."""

    def __init__(self, hosting: LocalClient, *, slots: int, on_ended: Callable[[Ended], None]) -> None:
        self.hosting, self.slots = hosting, slots
        self.draining = False
        self._on_ended = on_ended
        self._live: dict[str, LiveSession] = {}
        self._over: dict[str, Fault] = {}
        self.empty = asyncio.Event()
        self.empty.set()

    def __len__(self) -> int:
        return len(self._live)

    def running(self) -> tuple[SessionSpec, ...]:
        return tuple(session.spec for session in self._live.values())

    async def open(self, spec: SessionSpec) -> None:
        session = self._live.get(spec.session_id)
        if session is None:
            if self.draining:
                raise ControllerFailed("this worker is draining and takes no new sessions", status=503)
            if len(self._live) >= self.slots:
                raise ControllerFailed(f"all {self.slots} slots of this worker are taken", status=503)
            session = self._live[spec.session_id] = LiveSession(spec, hosting=self.hosting, ended=self._ended)
            self.empty.clear()
        await session.opened()

    def call(self, body: Start | Act | Solve, *, trusted: bool = False) -> asyncio.Task[Any]:
        """The task of the call. A Connection answers from it, which saves a task per turn."""
        session = self._find(body, trusted=trusted)
        if isinstance(body, Act):
            return session.act(body)
        return session.solve(body) if isinstance(body, Solve) else session.start()

    async def close(self, call: Close, *, trusted: bool = False) -> None:
        if call.session_id in self._live:
            await self._find(call, trusted=trusted).end("closed")

    def renew(self, renew: Renew) -> Renewed:
        for session_id in renew.session_ids:
            if (session := self._live.get(session_id)) is not None:
                session.renew()
        return Renewed(tuple(each for each in renew.session_ids if each not in self._live))

    async def end(self, session_ids: Iterable[str], *, message: str) -> None:
        """Ends sessions that their clients did not close; waiting calls raise WorkerLost."""
        lost = {each: WorkerLost(f"session {each}: {message}") for each in session_ids if each in self._live}
        await asyncio.gather(*(self._live[each].end("failed", message, error=error) for each, error in lost.items()))

    async def end_all(self, message: str) -> None:
        await self.end(tuple(self._live), message=message)

    def _find(self, call: Start | Act | Solve | Close, *, trusted: bool) -> LiveSession:
        """`trusted`: the call came from the controller, which may omit the key."""
        session = self._live.get(call.session_id)
        if session is None:
            if (over := self._over.get(call.session_id)) is not None:
                raise error_of(over)
            raise ControllerFailed(f"no session {call.session_id[:64]!r} on this worker", status=404)
        if not (trusted and not call.key) and not hmac.compare_digest(call.key.encode(), session.spec.key.encode()):
            raise ControllerFailed(f"the key does not fit session {call.session_id}", status=403)
        return session

    def _ended(self, session: LiveSession, ended: Ended | None) -> None:
        """`ended` is None for a session that never opened, which the caller of `open` reports."""
        del self._live[session.id]
        if not self._live:
            self.empty.set()
        if ended is not None:
            assert session.over is not None
            self._over[session.id] = fault_of(session.over)  # an error would hold the session
            while len(self._over) > MAX_REMEMBERED:
                del self._over[next(iter(self._over))]
            self._on_ended(ended)


class LiveSession:
    def __init__(
        self, spec: SessionSpec, *, hosting: LocalClient, ended: Callable[[LiveSession, Ended | None], None]
    ) -> None:
        self.spec, self.id = spec, spec.session_id
        self.over: LudusError | None = None
        """Raised by every call from now on."""
        self._hosting, self._ended = hosting, ended
        self._loop = asyncio.get_running_loop()
        self._session: Any = None
        self._num_opening = 0
        """Callers that wait until it is open."""
        self._turn = 0
        self._answers: dict[str, tuple[Any, asyncio.Task[Any]]] = {}
        """The last call of each kind: its identity, and the task that gives its answer."""
        self._shutting: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        # nobody can renew it before it is open, and opening is limited by timeout_s
        self._lease_until = self._loop.time() + spec.timeout_s + spec.lease_s
        self._lease = self._loop.call_at(self._lease_until, self._check_lease)
        self._limit = self._loop.call_later(spec.session_timeout_s, self._out_of_time)
        self._busy: asyncio.Task[Any] = detached(self._open())
        self._answers["open"] = (None, self._busy)

    def renew(self) -> None:
        self._lease_until = self._loop.time() + self.spec.lease_s

    async def opened(self) -> None:
        opening = self._answers["open"][1]
        self._num_opening += 1
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled() and self.over is not None:
                raise self.over from None
            raise
        finally:
            self._num_opening -= 1
            self.renew()

    def start(self) -> asyncio.Task[Observation]:
        return self._once("start", None, lambda: self._session.start())

    def act(self, act: Act) -> asyncio.Task[Observation]:
        which = (act.turn, act.request_id)
        if self._known("act", which) is None:
            self._require_turn(act.turn)
        return self._once("act", which, lambda: self._session.act(act.action))

    def solve(self, solve: Solve) -> asyncio.Task[Action]:
        which = (self._turn, solve.player, solve.seed)
        return self._once("solve", which, lambda: self._session.propose(solve.player, seed=solve.seed))

    def _known(self, kind: str, which: Any) -> asyncio.Task[Any] | None:
        known = self._answers.get(kind)
        return known[1] if known is not None and known[0] == which else None

    def _require_turn(self, turn: int) -> None:
        if "start" not in self._answers:
            raise ControllerFailed(f"session {self.id} has not been started; call start first", status=409)
        if turn != self._turn:
            done = f"turn {self._turn - 1} was taken by another request" if self._turn else "no turn was taken yet"
            raise ControllerFailed(
                f"session {self.id}: got turn {turn}, expected turn {self._turn}; {done}", status=409
            )

    def _once(self, kind: str, which: Any, work: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
        """The task of the call; a new one, unless the same call was made before."""
        self.renew()
        task = self._known(kind, which)
        if task is None:
            if self.over is not None:
                raise self.over
            if not self._busy.done():
                raise ControllerFailed(
                    f"session {self.id} is busy with another call; make one call at a time, and repeat a call "
                    "with the same request_id",
                    status=409,
                )
            self._turn += kind == "act"
            task = self._busy = detached(self._in_time(kind, work))
            self._answers[kind] = (which, task)
        return task

    async def _in_time(self, kind: str, work: Callable[[], Awaitable[T]]) -> T:
        limit_s = self.spec.timeout_s
        clock = asyncio.timeout(limit_s)
        try:
            async with clock:
                return await work()
        except TimeoutError:
            if not clock.expired():
                raise
            late = TurnTimeout(f"{self.spec.task.id}: {kind} exceeded {limit_s:g} s and was stopped")
            self._break(late)
            raise late from None
        except TurnTimeout as error:  # its code blocked the event loop
            self._break(error)
            raise
        except asyncio.CancelledError:
            if self.over is not None:
                raise self.over from None
            raise
        finally:
            self.renew()

    async def _open(self) -> None:
        spec = self.spec
        try:
            self._session = await self._hosting.open(spec.task, seed=spec.seed, timeout_s=spec.timeout_s, label=self.id)
        except BaseException as error:
            if self._ending is None:
                self._cancel_timers()
                self._ended(self, None if self._num_opening else self._unopened(error))
            raise
        if self._ending is None:
            self._lease.cancel()
            self.renew()
            self._check_lease()

    def _unopened(self, error: BaseException) -> Ended:
        """For a restarted controller, to which this session was reported as running."""
        unopened = WorkerLost(f"session {self.id} was not opened")
        self.over = self.over or (error if isinstance(error, LudusError) else unopened)
        return Ended(self.id, "failed", str(self.over))

    def end(self, cause: str, message: str = "", *, error: LudusError | None = None) -> Awaitable[None]:
        """Frees everything. Idempotent: the first cause counts. Waiting calls raise `error`."""
        if self._ending is None:
            over = ControllerFailed(f"session {self.id} is over: {message or cause}", status=404)
            self.over = self.over or error or over
            self._cancel_timers()
            self._ending = asyncio.create_task(self._end(Ended(self.id, cause, message)))
        return asyncio.shield(self._ending)

    async def _end(self, ended: Ended) -> None:
        try:
            await asyncio.shield(self._shut())
        finally:
            self._ended(self, ended)

    def _break(self, error: LudusError) -> None:
        """Stops the code of a session that timed out; the client may close it for a while."""
        self.over = self.over or error
        self._limit.cancel()
        self._limit = self._loop.call_later(BROKEN_S, lambda: self.end("timeout", str(error)))
        self._shut()

    def _out_of_time(self) -> None:
        doing = next((kind for kind, (_, task) in self._answers.items() if task is self._busy and not task.done()), "")
        limit = f"the session exceeded {self.spec.session_timeout_s:g} s"
        self._break(TurnTimeout(f"{self.spec.task.id}: {limit}{doing and ' in '}{doing}"))

    def _check_lease(self) -> None:
        if self._loop.time() < self._lease_until:  # renewed: one timer per lease is enough
            self._lease = self._loop.call_at(self._lease_until, self._check_lease)
        else:
            self.end("lease", f"no call or renewal for {self.spec.lease_s:g} s")

    def _shut(self) -> asyncio.Task[None]:
        self._shutting = self._shutting or asyncio.create_task(self._shut_down())
        return self._shutting

    async def _shut_down(self) -> None:
        if not self._busy.done():
            self._busy.cancel()
            await asyncio.wait([self._busy])
        if self._session is not None:
            await self._session.close()

    def _cancel_timers(self) -> None:
        self._lease.cancel()
        self._limit.cancel()
