"""The live sessions of a worker. Promise: a call is carried out once, one at a time, in its time; what nobody wants any more is freed.

    open ──▶ live ──start, act, solve──▶ live ──close──▶ over, slot free, `ended` told
               │  └─ a call or the session out of time: broken, its code stopped at once, over when the client closes it, or soon
               └─ no call and no renewal for a whole lease ──▶ over

A call runs in a task of its own: a client whose link breaks does not cancel it, and the same call over the next link joins it.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from ludus.controller.client.local import LocalClient
from ludus.controller.records import Act, Close, Ended, OpenHere, Renew, Renewed, Running, Solve, Start
from ludus.errors import ControllerFailed, LudusError, TurnTimeout, WorkerLost
from ludus.types import Action, Observation
from ludus.wire.codec import Fault, error_of, fault_of

T = TypeVar("T")
BROKEN_S = 5.0
"""A broken session waits so long for its client to hear of it and close it."""
MAX_REMEMBERED = 10_000
"""Sessions that are over and can still be asked why."""


class Sessions:
    """`on_ended` is told of every session whose slot is free again."""

    def __init__(self, hosting: LocalClient, *, slots: int, on_ended: Callable[[Ended], None]) -> None:
        self.hosting, self.slots = hosting, slots
        self.draining = False
        self._on_ended = on_ended
        self._live: dict[str, LiveSession] = {}
        self._over: dict[str, Fault] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._live)

    def running(self) -> tuple[Running, ...]:
        return tuple(session.running() for session in self._live.values())

    async def open(self, here: OpenHere) -> None:
        session = self._live.get(here.session_id)
        if session is None:
            self._require_room()
            session = self._live[here.session_id] = LiveSession(here, hosting=self.hosting, ended=self._ended)
            self._empty.clear()
        await session.opened()

    async def start(self, call: Start, *, trusted: bool = False) -> Observation:
        session = self._find(call, trusted=trusted)
        return await session.joined(session.start())

    async def act(self, call: Act, *, trusted: bool = False) -> Observation:
        session = self._find(call, trusted=trusted)
        return await session.joined(session.act(call))

    async def solve(self, call: Solve, *, trusted: bool = False) -> Action:
        session = self._find(call, trusted=trusted)
        return await session.joined(session.solve(call))

    def begun(self, call: Start | Act | Solve, *, trusted: bool = False) -> asyncio.Task[Any]:
        """The same, for a link: the task itself, which it answers from. Awaiting it would be another task for every turn."""
        session = self._find(call, trusted=trusted)
        if isinstance(call, Act):
            return session.act(call)
        return session.solve(call) if isinstance(call, Solve) else session.start()

    async def close(self, call: Close, *, trusted: bool = False) -> None:
        if call.session_id in self._live:
            await self._find(call, trusted=trusted).end("closed")

    def renew(self, renew: Renew) -> Renewed:
        for session_id in renew.session_ids:
            if (session := self._live.get(session_id)) is not None:
                session.renew()
        return Renewed(tuple(each for each in renew.session_ids if each not in self._live))

    async def end(self, session_ids: Iterable[str], *, message: str) -> None:
        """It is not their clients who want that."""
        live = [self._live[each] for each in session_ids if each in self._live]
        await asyncio.gather(
            *(each.end("failed", message, error=WorkerLost(f"session {each.id}: {message}")) for each in live)
        )

    async def end_all(self, message: str) -> None:
        await self.end(tuple(self._live), message=message)

    async def empty(self) -> None:
        await self._empty.wait()

    def _require_room(self) -> None:
        if self.draining:
            raise ControllerFailed("this worker is draining and takes no new sessions", status=503)
        if len(self._live) >= self.slots:
            raise ControllerFailed(f"all {self.slots} slots of this worker are taken", status=503)

    def _find(self, call: Start | Act | Solve | Close, *, trusted: bool) -> LiveSession:
        """`trusted`: it came from the controller, which has asked who its client is; without a key it is the controller's own word."""
        session = self._live.get(call.session_id)
        if session is None:
            if (over := self._over.get(call.session_id)) is not None:
                raise error_of(over)
            raise ControllerFailed(f"no session {call.session_id[:64]!r} on this worker", status=404)
        if not (trusted and not call.key) and not hmac.compare_digest(call.key.encode(), session.here.key.encode()):
            raise ControllerFailed(f"the key does not fit session {call.session_id}", status=403)
        return session

    def _ended(self, session: LiveSession, ended: Ended | None) -> None:
        """None: it was never open, and whoever asks for it hears that."""
        del self._live[session.id]
        if not self._live:
            self._empty.set()
        if ended is not None:
            assert session.over is not None
            self._over[session.id] = fault_of(session.over)  # not the error itself, whose traceback holds the session
            while len(self._over) > MAX_REMEMBERED:
                del self._over[next(iter(self._over))]
            self._on_ended(ended)


class LiveSession:
    """One session: its lease, its limits, its last answers."""

    def __init__(
        self, here: OpenHere, *, hosting: LocalClient, ended: Callable[[LiveSession, Ended | None], None]
    ) -> None:
        self.here, self.id = here, here.session_id
        self.over: LudusError | None = None
        """What calls hear from now on."""
        self._hosting, self._ended = hosting, ended
        self._loop = asyncio.get_running_loop()
        self._session: Any = None
        self._num_asking = 0
        """Who waits to hear that it is open."""
        self._turn = 0
        self._answers: dict[str, tuple[Any, asyncio.Task[Any]]] = {}
        """Of each kind of call the last one: which it was, and the task that has or will have its answer."""
        self._shutting: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        # nobody can renew it before it is open; what opens it keeps to timeout_s
        self._lease_until = self._loop.time() + here.open.timeout_s + here.open.lease_s
        self._lease = self._loop.call_at(self._lease_until, self._check_lease)
        self._limit = self._loop.call_later(here.open.session_timeout_s, self._out_of_time)
        self._busy: asyncio.Task[Any] = asyncio.create_task(self._open())
        self._busy.add_done_callback(_retrieved)
        self._answers["open"] = (None, self._busy)

    def running(self) -> Running:
        wanted = self.here.open
        return Running(self.id, wanted.request_id, wanted.task, self.here.client, self.here.key)

    def renew(self) -> None:
        self._lease_until = self._loop.time() + self.here.open.lease_s

    # -------------------------------------------------------------------------------------------- calls

    async def opened(self) -> None:
        self._num_asking += 1
        try:
            await self.joined(self._answers["open"][1])
        finally:
            self._num_asking -= 1

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
            done = (
                f"turn {self._turn - 1} was the last one and was another request's"
                if self._turn
                else "no turn was taken yet"
            )
            raise ControllerFailed(
                f"session {self.id}: got turn {turn}, expected turn {self._turn}; {done}", status=409
            )

    def _once(self, kind: str, which: Any, work: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
        """The task of the call: it is carried out, unless this very call was made before."""
        self.renew()
        task = self._known(kind, which)
        if task is None:
            if self.over is not None:
                raise self.over
            if not self._busy.done():
                raise ControllerFailed(
                    f"session {self.id} is still busy with another call; one at a time, and a repeated one with the same request_id",
                    status=409,
                )
            self._turn += kind == "act"
            task = self._busy = asyncio.create_task(self._in_time(kind, work))
            task.add_done_callback(_retrieved)
            self._answers[kind] = (which, task)
        return task

    async def joined(self, task: asyncio.Task[T]) -> T:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and self.over is not None:
                raise self.over from None
            raise
        finally:
            self.renew()

    async def _in_time(self, kind: str, work: Callable[[], Awaitable[T]]) -> T:
        limit_s = self.here.open.timeout_s
        clock = asyncio.timeout(limit_s)
        try:
            async with clock:
                return await work()
        except TimeoutError:
            if not clock.expired():
                raise
            late = TurnTimeout(f"{self.here.open.task.id}: {kind} exceeded {limit_s:g} s and was stopped")
            self._break(late)
            raise late from None
        except TurnTimeout as error:  # it held the loop
            self._break(error)
            raise
        except asyncio.CancelledError:
            if self.over is not None:
                raise self.over from None
            raise
        finally:
            self.renew()

    async def _open(self) -> None:
        wanted = self.here.open
        try:
            self._session = await self._hosting.open(
                wanted.task, seed=wanted.seed, timeout_s=wanted.timeout_s, label=self.id
            )
        except BaseException as error:
            if self._ending is None:
                self._forget_timers()
                self._ended(self, None if self._num_asking else self._unopened(error))
            raise
        if self._ending is None:
            self._lease.cancel()
            self.renew()
            self._lease = self._loop.call_at(self._lease_until, self._check_lease)

    def _unopened(self, error: BaseException) -> Ended:
        """For a controller that has taken the place of the one that asked: it was told that this session runs."""
        if self.over is None:
            self.over = error if isinstance(error, LudusError) else WorkerLost(f"session {self.id} was not opened")
        return Ended(self.id, "failed", str(self.over))

    # -------------------------------------------------------------------------------------------- the end

    def end(self, cause: str, message: str = "", *, error: LudusError | None = None) -> Awaitable[None]:
        """Frees everything. Safe to call twice; the first one's cause is told. Who still waits for an answer hears `error`."""
        if self._ending is None:
            self.over = (
                self.over or error or ControllerFailed(f"session {self.id} is over: {message or cause}", status=404)
            )
            self._forget_timers()
            self._ending = asyncio.create_task(self._end(Ended(self.id, cause, message)))
        return asyncio.shield(self._ending)

    async def _end(self, ended: Ended) -> None:
        try:
            await self._shut()
        finally:
            self._ended(self, ended)

    def _break(self, error: LudusError) -> None:
        """Out of time. Its code is stopped at once; its client, who hears `error`, has a while to close it."""
        self.over = self.over or error
        self._limit.cancel()
        self._limit = self._loop.call_later(BROKEN_S, lambda: self.end("timeout", str(error)))
        self._shutting = self._shutting or asyncio.create_task(self._shut_down())

    def _out_of_time(self) -> None:
        wanted = self.here.open
        doing = next((kind for kind, (_, task) in self._answers.items() if task is self._busy and not task.done()), "")
        while_doing = f" in {doing}" if doing else ""
        self._break(TurnTimeout(f"{wanted.task.id}: the session exceeded {wanted.session_timeout_s:g} s{while_doing}"))

    def _check_lease(self) -> None:
        if (
            self._loop.time() < self._lease_until
        ):  # renewed meanwhile: a lease costs one timer, however often it is renewed
            self._lease = self._loop.call_at(self._lease_until, self._check_lease)
        else:
            self.end("lease", f"nobody called or renewed it for {self.here.open.lease_s:g} s")

    async def _shut(self) -> None:
        self._shutting = self._shutting or asyncio.create_task(self._shut_down())
        await asyncio.shield(self._shutting)

    async def _shut_down(self) -> None:
        if not self._busy.done():
            self._busy.cancel()
            await asyncio.wait([self._busy])
        if self._session is not None:
            await self._session.close()

    def _forget_timers(self) -> None:
        self._lease.cancel()
        self._limit.cancel()


def _retrieved(task: asyncio.Task[Any]) -> None:
    """Its failure waits for whoever asks again; that nobody may is no reason for a warning."""
    if not task.cancelled():
        task.exception()
