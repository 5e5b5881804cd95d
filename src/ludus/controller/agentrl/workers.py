"""An AgentRL worker as one of the controller's. Promise: a slot is free when its session is over, whatever the author's code does.

Their worker knows no leases, no request ids and no time limits: the controller keeps the first, this file the others.

How a session of theirs ends early. Cancelling raises a BaseException in the author's code; where the author does not handle that, their
worker counts the session as running for ever. So a session is first answered with nonsense, on which most classes fail, or reach their
own limit; only what survives that is cancelled, and what survives even that keeps its slot out of the roster until it is gone. A worker
that was seen to honour a cancel is simply cancelled from then on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ludus.controller.agentrl.translate import Index, Json, index_of, observation_of, spoken, tasks_of
from ludus.controller.agentrl.wires import Answer, Wire, read_json
from ludus.controller.records import Act, AskTasks, Close, OpenHere, Running, Solve, Start
from ludus.controller.service.ids import number_of, session_id_of
from ludus.errors import ConfigError, ControllerFailed, EnvironmentFailed, LudusError, TurnTimeout, WorkerLost
from ludus.types import Action, Message, Observation, Task
from ludus.wire.codec import encode

DIALECT = "agentrl"
END_S = 5.0
"""How long a session may take to end by itself, before it is cancelled. All of it must fit into the controller's patience."""
NOTICE_S = 1.5
"""How long a cancelled session may take to be gone, before its slot counts as stuck."""
ASK_S = 1.5
"""How long a worker may take to answer while a session of it ends."""
BUSY_S = 10.0
"""How long it may take otherwise: their classes block the loop now and then."""
MAX_NONSENSE = 64
NONSENSE: tuple[Json, ...] = (
    {"role": "assistant", "content": [0], "tool_calls": [{}]},  # their worker does not look inside
    {"role": "assistant", "content": ""},
)
UNKNOWN = "No such session"
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Played:
    """A session on their worker, as far as it has come."""

    session_id: str
    task: Task
    timeout_s: float = END_S
    ends_at: float = 0.0
    opening: asyncio.Future[Json] | None = None
    first: tuple[Message, ...] = ()
    turn: int = 0
    acted: tuple[int, str] = (-1, "")
    acting: asyncio.Future[Observation] | None = None
    busy: asyncio.Task[Answer] | None = None
    """The call under way to their worker. It outlives whoever waits for it."""
    begun: bool = False
    over: bool = False
    ours: bool = True
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Their worker has told that the cancelled session is gone."""

    @property
    def number(self) -> int:
        return number_of(self.session_id)

    @property
    def calling(self) -> bool:
        return self.busy is not None and not self.busy.done()


class AgentrlWorker:
    dialect = DIALECT
    keeps_leases = False

    def __init__(
        self,
        worker_id: str,
        *,
        name: str,
        concurrency: int,
        indices: Sequence[Index],
        wire: Wire,
        changed: Callable[[AgentrlWorker], object],
        left: Callable[[AgentrlWorker, str], object],
    ) -> None:
        """`changed(worker)`: its usable slots have changed. `left(worker, reason)`: it cannot be reached, or was given up."""
        self.id, self.name, self.concurrency, self.wire = worker_id, name, concurrency, wire
        self.indices = tuple(indices)
        self.known = frozenset(indices)
        self.sessions: dict[str, Played] = {}
        self.stuck: set[int] = set()
        """Sessions that occupy a slot there although nobody plays them."""
        self._tasks = tasks_of(name, indices)
        self._changed, self._left = changed, left
        self._ending: dict[int, Played] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._cancels = False

    @property
    def slots(self) -> int:
        return max(0, self.concurrency - len(self.stuck))

    # -------------------------------------------------------------------------------------------- what the controller calls

    async def open(self, here: OpenHere) -> None:
        """Their worker opens and starts in one call; `start` answers with what it said then."""
        wanted = here.open
        if index_of(wanted.task) not in self.known:
            raise ConfigError(f"{self.name} has no task with index {index_of(wanted.task)!r:.80}")
        played = self.sessions.get(here.session_id)
        if played is None:
            ends_at = time.monotonic() + wanted.session_timeout_s
            played = Played(here.session_id, wanted.task, timeout_s=wanted.timeout_s, ends_at=ends_at)
            self.sessions[here.session_id] = played
            played.opening = asyncio.ensure_future(self._begin(played))
            played.opening.add_done_callback(_retrieved)
        assert played.opening is not None
        try:
            await asyncio.shield(played.opening)
        except LudusError:
            if self.sessions.pop(here.session_id, None) is not None:
                self._spawn(self._end(played))
            raise

    async def tasks(self, ask: AskTasks) -> tuple[Task, ...]:
        return tuple(task for task in self._tasks if task.split == ask.split)

    async def start(self, start: Start) -> Observation:
        played = self._find(start.session_id)
        observation = observation_of(await self._opened(played), where=played.task.id)
        played.first = observation.messages
        return observation

    async def act(self, act: Act) -> Observation:
        played = self._find(act.session_id)
        if played.acting is not None and played.acted == (act.turn, act.request_id):
            return await asyncio.shield(played.acting)
        if act.turn != played.turn:
            raise ControllerFailed(
                f"session {played.session_id} is at turn {played.turn}; got turn {act.turn}", status=409
            )
        if not played.first:
            raise ControllerFailed(f"session {played.session_id} has not been started", status=409)
        self._refuse_unless_waiting(played)
        played.turn, played.acted = act.turn + 1, (act.turn, act.request_id)
        played.acting = asyncio.ensure_future(self._act(played, [spoken(act.action)]))
        played.acting.add_done_callback(_retrieved)
        return await asyncio.shield(played.acting)

    async def solve(self, solve: Solve) -> Action:
        raise ConfigError(f"{self.name} is on an AgentRL worker, which has no solver and no random player")

    async def close(self, close: Close) -> None:
        played = self.sessions.pop(close.session_id, None)
        if played is not None:
            await asyncio.shield(self._spawn(self._end(played)))

    def renew(self, session_ids: Sequence[str]) -> None:
        return None

    def drain(self, draining: bool) -> None:
        return None

    def leave(self) -> None:
        self._left(self, "the controller gave it up")

    async def raw(self, session_id: str, *, call: str, body: bytes) -> bytes:
        """What their evaluator said, to their worker: every field of a message survives."""
        played = self._find(session_id)
        if call == "start_sample":
            return encode(await self._opened(played))
        return encode(await self._interact(played, read_json(body)))

    # -------------------------------------------------------------------------------------------- turns

    async def _begin(self, played: Played) -> Json:
        body = {"index": index_of(played.task), "session_id": played.number}
        if (custom := played.task.data.get("custom_task")) is not None:
            body["custom_task"] = custom
        answer = await self._ask(played, "start_sample", body)
        played.begun = True
        return self._heard(played, answer)

    async def _opened(self, played: Played) -> Json:
        assert played.opening is not None
        return await asyncio.shield(played.opening)

    async def _act(self, played: Played, messages: list[Json]) -> Observation:
        answer = await self._interact(played, messages)
        return observation_of(answer, first=played.first, where=f"{played.task.id} turn {played.turn - 1}")

    async def _interact(self, played: Played, messages: Any) -> Json:
        self._refuse_unless_waiting(played)
        answer = await self._ask(played, "interact", {"session_id": played.number, "messages": messages})
        inner = answer.get("env_out")
        if not isinstance(inner, dict):
            raise EnvironmentFailed(f"{played.task.id}: an AgentRL worker answered {answer!r:.120}; expected env_out")
        return self._heard(played, inner)

    def _refuse_unless_waiting(self, played: Played) -> None:
        if played.over:
            raise EnvironmentFailed(f"{played.task.id}: the session is over")
        if played.calling:
            raise ControllerFailed(f"session {played.session_id} is still busy with the last call", status=409)

    async def _ask(self, played: Played, call: str, body: Json) -> Json:
        limit_s = max(0.0, min(played.timeout_s, played.ends_at - time.monotonic()))
        played.busy = asyncio.create_task(self.wire.call(call, body))
        played.busy.add_done_callback(_retrieved)
        done, _ = await asyncio.wait({played.busy}, timeout=limit_s)
        if not done:
            raise TurnTimeout(f"{played.task.id}: {call} on AgentRL worker {self.id} exceeded {limit_s:g} s")
        try:
            answer = played.busy.result()
        except WorkerLost as error:
            raise await self._explained(error, played) from None
        if answer.status != 200 or not isinstance(answer.body, dict):
            raise self._refused(played, answer, call)
        return answer.body

    def _heard(self, played: Played, answer: Json) -> Json:
        played.over = bool(answer.get("finish"))
        return answer

    def _refused(self, played: Played, answer: Answer, call: str) -> LudusError:
        where = f"{played.task.id}: AgentRL worker {self.id} refused {call}"
        if answer.status == 406:
            played.over = True  # it never began
            return ControllerFailed(f"{where}: all its slots are occupied", status=503)
        if answer.status == 400 and UNKNOWN in answer.detail:
            played.over = True
            return EnvironmentFailed(f"{where}: it no longer knows the session; it was restarted, or ended it itself")
        return EnvironmentFailed(f"{where}: {answer.detail}")

    async def _explained(self, error: WorkerLost, played: Played) -> LudusError:
        """A broken connection is this session's loss; a worker that cannot be reached at all is everybody's."""
        try:
            await self.there(limit_s=ASK_S)
        except WorkerLost:
            self._left(self, str(error))
            return error
        except (TimeoutError, EnvironmentFailed):
            pass  # busy, but there
        return EnvironmentFailed(f"{played.task.id}: the connection broke, and the answer is lost ({error})")

    def _find(self, session_id: str) -> Played:
        played = self.sessions.get(session_id)
        if played is None:
            raise ControllerFailed(f"no session {session_id!r} on AgentRL worker {self.id}", status=404)
        return played

    # -------------------------------------------------------------------------------------------- ends

    async def _end(self, played: Played) -> None:
        """Frees its slot there, or takes the slot out of the roster."""
        if not played.begun and played.busy is None:
            return
        self._ending[played.number] = played
        try:
            if await self._ended(played):
                if played.number in self.stuck:
                    self.stuck.discard(played.number)
                    self._changed(self)
            else:
                self.stuck.add(played.number)
                _log.warning(
                    "a session of %s on AgentRL worker %s did not end, because its class does not handle being cancelled: "
                    "%d of %d slots can be used until that worker is restarted",
                    *(self.name, self.id, self.slots, self.concurrency),
                )
                self._changed(self)
        except (LudusError, TimeoutError):
            pass  # whether it is gone is seen when the worker is asked again
        finally:
            del self._ending[played.number]

    async def _ended(self, played: Played) -> bool:
        try:
            async with asyncio.timeout(END_S):
                if played.busy is not None:
                    await asyncio.wait({played.busy})
                if played.over or (not self._cancels and await self._confused(played)):
                    return True
        except TimeoutError:
            pass
        return await self._cancelled(played)

    async def _confused(self, played: Played) -> bool:
        for turn in range(MAX_NONSENSE):
            message = NONSENSE[turn % len(NONSENSE)]
            answer = await self.wire.call("interact", {"session_id": played.number, "messages": [message]})
            inner = answer.body.get("env_out") if isinstance(answer.body, Mapping) else None
            if UNKNOWN in answer.detail or (isinstance(inner, Mapping) and inner.get("finish")):
                return True
        return False

    async def _cancelled(self, played: Played) -> bool:
        async with asyncio.timeout(ASK_S):
            answer = await self.wire.call("cancel_with_notice", {"session_id": played.number})
        if UNKNOWN in answer.detail:
            return True
        try:
            async with asyncio.timeout(NOTICE_S):
                await played.gone.wait()
        except TimeoutError:
            return played.number not in await self.there(limit_s=ASK_S)
        self._cancels = True
        return True

    # -------------------------------------------------------------------------------------------- keeping books

    async def there(self, *, limit_s: float = BUSY_S) -> set[int]:
        """The sessions it has."""
        async with asyncio.timeout(limit_s):
            answer = await self.wire.call("get_sessions")
        if answer.status != 200 or not isinstance(answer.body, Mapping):
            raise EnvironmentFailed(f"AgentRL worker {self.id} does not say which sessions it has: {answer.detail}")
        return {int(number) for number in answer.body}

    def running(self) -> tuple[Running, ...]:
        playing = [*self.sessions.values(), *(each for each in self._ending.values() if each.ours)]
        return tuple(Running(each.session_id, request_id="", task=each.task) for each in playing)

    def noticed(self, number: int) -> None:
        """Their worker says that a cancelled session is gone."""
        if (played := self._ending.get(number)) is not None:
            played.gone.set()

    async def reconcile(self) -> list[str]:
        """Compares what it has with what we think. Answers with our sessions that it has lost, and ends those there that nobody plays."""
        before = {played.number for played in self.sessions.values()} | self._ending.keys()
        # a session may end there with an answer that is still on its way here
        idle = [(each, each.busy) for each in self.sessions.values() if each.begun and not each.calling]
        there = await self.there()
        after = {played.number for played in self.sessions.values()} | self._ending.keys()
        slots = self.slots
        self.stuck &= there
        for number in there - before - after - self.stuck:
            self.stuck.add(number)
            self._spawn(self._end(self._stranger(number)))
        if self.slots != slots:
            self._changed(self)
        return [
            each.session_id for each, last in idle if not each.over and each.busy is last and each.number not in there
        ]

    def _stranger(self, number: int) -> Played:
        """A session of another life of this controller, or one whose start nobody waited for."""
        task = Task(f"{self.name}/unknown/{number}", environment=self.name, split="")
        return Played(session_id_of(number), task, begun=True, ours=False)

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        task.add_done_callback(_retrieved)
        return task

    async def dismiss(self) -> None:
        """It is no longer one of ours; nothing is called there any more."""
        for task in self._background:
            task.cancel()
        await self.wire.close()


def _retrieved(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()  # whoever waited may be gone
