"""One AgentRL worker, as a `Worker` of the controller. Promise: an ended session frees its slot.

These workers know no leases, request ids or time limits: the controller enforces leases, this
module the rest. Ending a session early: a cancel raises a BaseException in the author's code; where
the author does not handle it, the worker counts the session as running for ever. So the session is
first sent nonsense, on which most classes fail or reach their own limit. If it survives, it is
cancelled, and if it survives that too, its slot is out of the roster until it is gone. A worker
that has once honoured a cancel is cancelled directly.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ludus.controller.agentrl.translate import Json, index_of, observation_of, tasks_of
from ludus.controller.agentrl.wires import Answer, Wire, read_json
from ludus.controller.records import Act, AskTasks, Close, SessionSpec, Solve, Start, number_of, session_id_of
from ludus.controller.runtime import Background
from ludus.controller.service.workers import Worker
from ludus.errors import ConfigError, ControllerFailed, EnvironmentFailed, LudusError, TurnTimeout, WorkerLost
from ludus.openai_format import action_to_openai
from ludus.types import Action, Message, Observation, Task
from ludus.wire.codec import encode
from ludus.wire.connection import detached

DIALECT = "agentrl"
END_S = 5.0
"""Seconds in which a session may end by itself before it is cancelled; below server.CLOSE_S."""
NOTICE_S = 1.5
"""Seconds in which a cancelled session must be gone, before its slot counts as stuck."""
ASK_S = 1.5
"""Seconds in which a worker must answer while a session ends."""
BUSY_S = 10.0
"""Seconds in which it must answer otherwise: author code sometimes blocks its event loop."""
MAX_NONSENSE = 64
NONSENSE: tuple[Json, ...] = (
    {"role": "assistant", "content": [0], "tool_calls": [{}]},  # the worker does not look inside
    {"role": "assistant", "content": ""},
)
UNKNOWN = "No such session"
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class AgentrlSession:
    spec: SessionSpec
    ends_at: float = 0.0
    opening: asyncio.Future[Json] | None = None
    first: tuple[Message, ...] = ()
    turn: int = 0
    acted: tuple[int, str] = (-1, "")
    acting: asyncio.Future[Observation] | None = None
    busy: asyncio.Task[Answer] | None = None
    """The call in progress. It continues when its caller is gone."""
    begun: bool = False
    over: bool = False
    ours: bool = True
    """False for a session of an earlier controller, or one whose start nobody waited for."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the worker reports that the cancelled session is gone."""

    @property
    def number(self) -> int:
        return number_of(self.spec.session_id)

    @property
    def calling(self) -> bool:
        return self.busy is not None and not self.busy.done()


class Beat(msgspec.Struct, frozen=True):
    """A worker's heartbeat; one over gRPC has no address."""

    name: str
    address: str
    concurrency: int
    indices: list[int | str]


class AgentrlWorker(Worker):
    dialect = DIALECT
    keeps_leases = False

    def __init__(
        self,
        worker_id: str,
        beat: Beat,
        *,
        owner: str,
        wire: Wire,
        changed: Callable[[AgentrlWorker], object],
        left: Callable[[AgentrlWorker, str], object],
    ) -> None:
        """`changed(worker)`: its usable slots changed. `left(worker, reason)`: it is lost."""
        self.id, self.owner, self.wire = worker_id, owner, wire
        self.name, self.concurrency = beat.name, beat.concurrency
        self.indices, self.known = tuple(beat.indices), frozenset(beat.indices)
        self.sessions: dict[str, AgentrlSession] = {}
        self.stuck: set[int] = set()
        """Sessions that occupy a slot there although they are over here."""
        self._tasks = tasks_of(beat.name, beat.indices)
        self._changed, self._left = changed, left
        self._ending: dict[int, AgentrlSession] = {}
        self._background = Background()
        self._cancels = False

    @property
    def slots(self) -> int:
        return max(0, self.concurrency - len(self.stuck))

    async def open(self, spec: SessionSpec) -> None:
        """AgentRL opens and starts a session in one call; `start` returns that call's answer."""
        if index_of(spec.task) not in self.known:
            raise ConfigError(f"{self.name} has no task with index {index_of(spec.task)!r:.80}")
        session = self.sessions.get(spec.session_id)
        if session is None:
            session = AgentrlSession(spec, ends_at=time.monotonic() + spec.session_timeout_s)
            self.sessions[spec.session_id] = session
            session.opening = detached(self._begin(session))
        try:
            await self._opened(session)
        except LudusError:
            if self.sessions.pop(spec.session_id, None) is not None:
                self._background.spawn(self._end(session))
            raise

    async def tasks(self, ask: AskTasks) -> tuple[Task, ...]:
        return tuple(task for task in self._tasks if task.split == ask.split)

    async def start(self, start: Start) -> Observation:
        session = self._find(start.session_id)
        observation = observation_of(await self._opened(session), where=session.spec.task.id)
        session.first = observation.messages
        return observation

    async def act(self, act: Act) -> Observation:
        session = self._find(act.session_id)
        if session.acting is not None and session.acted == (act.turn, act.request_id):
            return await asyncio.shield(session.acting)
        if act.turn != session.turn:
            raise ControllerFailed(
                f"session {act.session_id} is at turn {session.turn}; got turn {act.turn}", status=409
            )
        if not session.first:
            raise ControllerFailed(f"session {act.session_id} has not been started; call start first", status=409)
        self._require_idle(session)
        session.turn, session.acted = act.turn + 1, (act.turn, act.request_id)
        session.acting = detached(self._act(session, [action_to_openai(act.action)]))
        return await asyncio.shield(session.acting)

    async def solve(self, solve: Solve) -> Action:
        raise ConfigError(f"{self.name} is on an AgentRL worker, which has no solver and no random player")

    async def close(self, close: Close) -> None:
        session = self.sessions.pop(close.session_id, None)
        if session is not None:
            await asyncio.shield(self._background.spawn(self._end(session)))

    def leave(self) -> None:
        self._left(self, "the controller gave it up")

    async def raw(self, session_id: str, *, call: str, body: bytes) -> bytes:
        """Passes the evaluator's messages on unchanged, so that every field survives."""
        session = self._find(session_id)
        if call == "start_sample":
            return encode(await self._opened(session))
        return encode(await self._interact(session, read_json(body)))

    async def _begin(self, session: AgentrlSession) -> Json:
        task = session.spec.task
        body = {"index": index_of(task), "session_id": session.number}
        if (custom := task.data.get("custom_task")) is not None:
            body["custom_task"] = custom
        answer = await self._ask(session, "start_sample", body)
        session.begun, session.over = True, bool(answer.get("finish"))
        return answer

    async def _opened(self, session: AgentrlSession) -> Json:
        assert session.opening is not None
        return await asyncio.shield(session.opening)

    async def _act(self, session: AgentrlSession, messages: list[Json]) -> Observation:
        answer = await self._interact(session, messages)
        where = f"{session.spec.task.id} turn {session.turn - 1}"
        return observation_of(answer, first=session.first, where=where)

    async def _interact(self, session: AgentrlSession, messages: Any) -> Json:
        self._require_idle(session)
        answer = await self._ask(session, "interact", {"session_id": session.number, "messages": messages})
        inner = answer.get("env_out")
        if not isinstance(inner, dict):
            raise EnvironmentFailed(
                f"{session.spec.task.id}: an AgentRL worker answered {answer!r:.120}; expected env_out"
            )
        session.over = bool(inner.get("finish"))
        return inner

    def _require_idle(self, session: AgentrlSession) -> None:
        if session.over:
            raise EnvironmentFailed(f"{session.spec.task.id}: the session is over")
        if session.calling:
            raise ControllerFailed(f"session {session.spec.session_id} is busy with the last call", status=409)

    async def _ask(self, session: AgentrlSession, call: str, body: Json) -> Json:
        limit_s = max(0.0, min(session.spec.timeout_s, session.ends_at - time.monotonic()))
        session.busy = detached(self.wire.call(call, body))
        done, _ = await asyncio.wait({session.busy}, timeout=limit_s)
        if not done:
            raise TurnTimeout(f"{session.spec.task.id}: {call} on AgentRL worker {self.id} exceeded {limit_s:g} s")
        try:
            answer = session.busy.result()
        except WorkerLost as error:
            raise await self._explained(error, session) from None
        if answer.status != 200 or not isinstance(answer.body, dict):
            raise self._refused(session, answer, call)
        return answer.body

    def _refused(self, session: AgentrlSession, answer: Answer, call: str) -> LudusError:
        where = f"{session.spec.task.id}: AgentRL worker {self.id} refused {call}"
        if answer.status == 406:
            session.over = True  # it never began
            return ControllerFailed(f"{where}: all its slots are occupied", status=503)
        if answer.status == 400 and UNKNOWN in answer.detail:
            session.over = True
            return EnvironmentFailed(f"{where}: it no longer knows the session; it was restarted, or ended it itself")
        return EnvironmentFailed(f"{where}: {answer.detail}")

    async def _explained(self, error: WorkerLost, session: AgentrlSession) -> LudusError:
        """A broken connection fails one session; a worker that is unreachable is lost."""
        try:
            await self.there(limit_s=ASK_S)
        except WorkerLost:
            self._left(self, str(error))
            return error
        except (TimeoutError, EnvironmentFailed):
            pass  # reachable, but busy
        return EnvironmentFailed(f"{session.spec.task.id}: the connection broke, and the answer is lost ({error})")

    def _find(self, session_id: str) -> AgentrlSession:
        session = self.sessions.get(session_id)
        if session is None:
            raise ControllerFailed(f"no session {session_id!r} on AgentRL worker {self.id}", status=404)
        return session

    async def _end(self, session: AgentrlSession) -> None:
        """Frees its slot there, or takes the slot out of the roster."""
        if not session.begun and session.busy is None:
            return
        self._ending[session.number] = session
        try:
            if await self._ended(session):
                if session.number in self.stuck:
                    self.stuck.discard(session.number)
                    self._changed(self)
            else:
                self.stuck.add(session.number)
                _log.warning(
                    "a session of %s on AgentRL worker %s did not end, because its class does not handle being cancelled: "
                    "%d of %d slots can be used until that worker is restarted",
                    *(self.name, self.id, self.slots, self.concurrency),
                )
                self._changed(self)
        except (LudusError, TimeoutError):
            pass  # `reconcile` sees whether it is gone
        finally:
            del self._ending[session.number]

    async def _ended(self, session: AgentrlSession) -> bool:
        try:
            async with asyncio.timeout(END_S):
                if session.busy is not None:
                    await asyncio.wait({session.busy})
                if session.over or (not self._cancels and await self._confused(session)):
                    return True
        except TimeoutError:
            pass
        return await self._cancelled(session)

    async def _confused(self, session: AgentrlSession) -> bool:
        for turn in range(MAX_NONSENSE):
            message = NONSENSE[turn % len(NONSENSE)]
            answer = await self.wire.call("interact", {"session_id": session.number, "messages": [message]})
            inner = answer.body.get("env_out") if isinstance(answer.body, Mapping) else None
            if UNKNOWN in answer.detail or (isinstance(inner, Mapping) and inner.get("finish")):
                return True
        return False

    async def _cancelled(self, session: AgentrlSession) -> bool:
        async with asyncio.timeout(ASK_S):
            answer = await self.wire.call("cancel_with_notice", {"session_id": session.number})
        if UNKNOWN in answer.detail:
            return True
        try:
            async with asyncio.timeout(NOTICE_S):
                await session.gone.wait()
        except TimeoutError:
            return session.number not in await self.there(limit_s=ASK_S)
        self._cancels = True
        return True

    async def there(self, *, limit_s: float = BUSY_S) -> set[int]:
        """The sessions that the worker itself counts."""
        async with asyncio.timeout(limit_s):
            answer = await self.wire.call("get_sessions")
        if answer.status != 200 or not isinstance(answer.body, Mapping):
            raise EnvironmentFailed(f"AgentRL worker {self.id} does not list its sessions: {answer.detail}")
        return {int(number) for number in answer.body}

    def running(self) -> tuple[SessionSpec, ...]:
        ending = (each for each in self._ending.values() if each.ours)
        return tuple(session.spec for session in (*self.sessions.values(), *ending))

    def noticed(self, number: int) -> None:
        """The worker reports that a cancelled session is gone."""
        if (session := self._ending.get(number)) is not None:
            session.gone.set()

    async def reconcile(self) -> list[str]:
        """Returns our sessions that the worker has lost, and ends those there that are not ours."""
        before = {session.number for session in self.sessions.values()} | self._ending.keys()
        # a session may have ended there although its last answer has not arrived here
        idle = [(each, each.busy) for each in self.sessions.values() if each.begun and not each.calling]
        there = await self.there()
        after = {session.number for session in self.sessions.values()} | self._ending.keys()
        slots = self.slots
        self.stuck &= there
        for number in there - before - after - self.stuck:
            self.stuck.add(number)
            self._background.spawn(self._end(self._stranger(number)))
        if self.slots != slots:
            self._changed(self)
        lost = [each for each, last in idle if not each.over and each.busy is last and each.number not in there]
        return [session.spec.session_id for session in lost]

    def _stranger(self, number: int) -> AgentrlSession:
        task = Task(f"{self.name}/unknown/{number}", environment=self.name, split="")
        spec = SessionSpec(task, seed=0, request_id="", session_id=session_id_of(number))
        return AgentrlSession(spec, begun=True, ours=False)

    async def dismiss(self) -> None:
        """Stops all calls to the worker."""
        await self._background.cancel()
        await self.wire.close()
