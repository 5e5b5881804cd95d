"""The routes below /api that AgentRL's evaluator, trainer and workers call.

Sessions on AgentRL workers pass unchanged, so that no field is lost. Sessions of our environments
are translated, and end here at their turn limit, which the evaluator does not know. A request that
finds no free slot waits up to WAIT_S, then gets status 400, as AgentRL expects. An access token is
sent as the password of the URL (http://any:TOKEN@host:port/api).
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import random
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from ludus.controller.agentrl import translate
from ludus.controller.agentrl.fleet import Fleet
from ludus.controller.agentrl.translate import CUSTOM, Index, Json
from ludus.controller.agentrl.wires import read_json
from ludus.controller.agentrl.workers import DIALECT, AgentrlWorker
from ludus.controller.records import ID_BITS, Act, AskTasks, Close, Open, Renew, Start, number_of, session_id_of
from ludus.controller.runtime import Background, not_found
from ludus.controller.service.api import authorised, json, while_connected
from ludus.controller.service.server import Controller
from ludus.errors import ConfigError, ControllerFailed, EnvironmentFailed, LudusError
from ludus.types import Action, Message, Observation, Stop, Task
from ludus.wire.codec import decode, fault_of

_seeds = random.Random()  # separate from the global state, which belongs to environments' authors
PREFIX = "/api"
LEASE_S = 660.0
"""Seconds between two calls: a slow model may take minutes, and the evaluator renews nothing."""
WAIT_S = 300.0
TIMEOUT_S = 240.0
MAX_TURNS = 50
"""The turn limit of an environment that sets none."""
Route = Callable[[Request], Awaitable[Any]]


@dataclass(slots=True)
class Progress:
    """How far a session of one of our environments has come."""

    max_turns: int
    turn: int = 0
    acts: int = 0
    """Turns that reached the environment; tool calls that cannot be parsed are answered here."""
    total: float = 0.0
    busy: bool = False


class StartSample(msgspec.Struct, frozen=True):
    name: str
    index: int | str
    custom_task: dict[str, Any] | None = None


class Interact(msgspec.Struct, frozen=True):
    messages: msgspec.Raw


class MarkStale(msgspec.Struct, frozen=True):
    worker_id: str
    stale: bool = True


class SessionNumber(msgspec.Struct, frozen=True):
    session_id: int


class AgentrlRoutes:
    def __init__(self, controller: Controller, *, wait_s: float = WAIT_S) -> None:
        self.controller, self.wait_s = controller, wait_s
        self.fleet = Fleet(controller)
        self.progress: dict[str, Progress] = {}
        self._background = Background()
        self.router = APIRouter(prefix=PREFIX, include_in_schema=False)
        for method, names in {"GET": _GET, "POST": _POST}.items():
            for name in names:
                route = self._guarded(getattr(self, name))
                self.router.add_api_route(f"/{name}", route, methods=[method], name=f"agentrl.{name}")

    async def get_indices(self, request: Request) -> list[Index]:
        name = request.query_params.get("name", "")
        worker = self._agentrl(name)
        return list(range(len(await self._tasks(name)))) if worker is None else list(worker.indices)

    async def start_sample(self, request: Request) -> Response:
        wanted = decode(await request.body(), StartSample)
        task = await self._task(wanted)
        opening = Open(
            task,
            seed=_seeds.getrandbits(32),
            request_id=f"agentrl-{secrets.token_hex(8)}",
            lease_s=LEASE_S,
            wait_s=self.wait_s,
            timeout_s=TIMEOUT_S,
        )
        opened = await while_connected(request, self.controller.open(opening, client=request.state.client))
        answer = await self._start(opened.session_id, task)
        return json(answer, headers={"session_id": str(number_of(opened.session_id))})

    async def interact(self, request: Request) -> Json:
        client = request.state.client
        session_id = _session_id(request)
        messages = decode(await request.body(), Interact).messages
        worker = self.controller.worker_of(session_id, client=client)
        if worker.dialect != DIALECT:
            return await self._turn(session_id, read_json(bytes(messages)))
        self.controller.renew(Renew((session_id,)), client=client)
        try:
            raw = await worker.raw(session_id, call="interact", body=bytes(messages))
        except EnvironmentFailed as error:
            return await self._failed(session_id, error)
        finally:
            self.controller.renew(Renew((session_id,)), client=client)
        return await self._passed(session_id, raw)

    async def cancel(self, request: Request) -> None:
        """Returns at once; the session is closed in the background."""
        self._cancel(_session_id(request), client=request.state.client)

    async def cancel_all(self, request: Request) -> None:
        client = request.state.client
        name, force = request.query_params.get("name", ""), request.query_params.get("force", "")
        own = [each for each in self.controller.roster.sessions.values() if each.spec.client == client]
        if not name and force.lower() not in ("1", "true") and len({each.environment for each in own}) > 1:
            raise ControllerFailed("sessions of several environments are open; give name, or force=true", status=403)
        for session in own:
            if not name or session.environment in (name, self._known_names().get(name, ("", ""))[0]):
                self._close_soon(session.id)

    async def list_workers(self, _: Request) -> list[Json]:
        return [
            {
                "id": seat.worker_id,
                "names": sorted(seat.environments),
                "address": seat.address,
                "concurrency": seat.slots,
                "current": len(seat.sessions),
                "stale": seat.drained,
                "alive": seat.away_until is None,
            }
            for seat in self.controller.roster.seats.values()
        ]

    async def list_sessions(self, _: Request) -> list[Json]:
        return [
            {
                "session_id": number_of(session.id),
                "name": session.environment,
                "task_id": session.spec.task.id,
                "worker_id": session.worker_id,
                "state": session.state,
            }
            for session in self.controller.roster.sessions.values()
        ]

    async def mark_stale(self, request: Request) -> None:
        wanted = decode(await request.body(), MarkStale)
        self.controller.drain(wanted.worker_id, draining=wanted.stale)

    async def clean_worker(self, request: Request) -> None:
        worker_id = decode(await request.body(), MarkStale).worker_id
        self.controller.lost(worker_id, reason="an operator removed it")

    async def clean_session(self, request: Request) -> None:
        number = decode(await request.body(), SessionNumber).session_id
        self._cancel(_checked_id(number), client=request.state.client)

    async def sync_all(self, _: Request) -> None:
        await self.fleet.reconcile()

    async def version(self, _: Request) -> Json:
        return {"variant": "nova", "version": 1}

    async def receive_heartbeat(self, request: Request) -> None:
        await self.fleet.beat(await request.body(), owner=request.state.client)

    async def cancel_notice(self, request: Request) -> None:
        self.fleet.noticed(decode(await request.body(), SessionNumber).session_id)

    async def _task(self, wanted: StartSample) -> Task:
        worker = self._agentrl(wanted.name)
        index = wanted.index
        if worker is None:
            if index == CUSTOM:
                raise ConfigError(f"{wanted.name} takes no custom tasks; its index is 0 or more")
            tasks = await self._tasks(wanted.name)
            return tasks[translate.position_of(index, task_ids=[task.id for task in tasks])]
        if index == CUSTOM and wanted.custom_task is None:
            raise ConfigError("index -1 means a custom task; send it as custom_task")
        if isinstance(index, int) and 0 <= index < len(worker.indices):  # a position, if all have names
            index = worker.indices[index] if all(isinstance(each, str) for each in worker.indices) else index
        if index not in worker.known:
            raise ConfigError(f"{wanted.name} has no task with index {index!r:.80}")
        return translate.task_of(wanted.name, index, custom=wanted.custom_task if index == CUSTOM else None)

    async def _tasks(self, name: str) -> tuple[Task, ...]:
        known = self._known_names()
        if name not in known:
            raise ConfigError(not_found(f"no worker has {name!r:.80}", name, known))
        environment, split = known[name]
        return await self.controller.tasks(AskTasks(environment, split))

    def _known_names(self) -> dict[str, tuple[str, str]]:
        """AgentRL's names of our environments, each with its environment and split."""
        known: dict[str, tuple[str, str]] = {}
        for described in self.controller.environments():
            for name, split in translate.names_of(described.name, described.splits):
                known.setdefault(name, (described.name, split))
        return known

    def _agentrl(self, name: str) -> AgentrlWorker | None:
        return next((worker for worker in self.fleet.workers.values() if worker.name == name), None)

    async def _start(self, session_id: str, task: Task) -> Json:
        client = self._owner(session_id)
        try:
            worker = self.controller.worker_of(session_id, client=client)
            if worker.dialect == DIALECT:
                raw = await worker.raw(session_id, call="start_sample", body=b"")
                return await self._passed(session_id, raw)
            observation = await self.controller.turn(Start(session_id), client=client)
        except EnvironmentFailed as error:
            return await self._failed(session_id, error)
        except BaseException:
            self._close_soon(session_id)
            raise
        self._forget_expired()
        limit = self.controller.described[task.environment].max_turns or MAX_TURNS
        self.progress[session_id] = progress = Progress(max_turns=limit, total=observation.reward)
        return await self._answered(session_id, progress, observation)

    async def _turn(self, session_id: str, messages: Any) -> Json:
        action = translate.action_of(messages)
        progress = self.progress.get(session_id)
        if progress is None:
            self._close_soon(session_id)
            raise ControllerFailed(
                "this session cannot continue, because the controller was restarted; start a new one", status=400
            )
        if progress.busy:
            raise ControllerFailed("the session is busy with the last interaction", status=400)
        progress.busy = True
        try:
            observation = await self._act(session_id, progress, action)
        except EnvironmentFailed as error:
            return await self._failed(session_id, error)
        finally:
            progress.busy = False
        progress.turn += 1
        progress.total += observation.reward
        return await self._answered(session_id, progress, observation, action)

    async def _act(self, session_id: str, progress: Progress, action: Action) -> Observation:
        client = self._owner(session_id)
        if action.problem:  # as in rollouts, the environment never gets what cannot be parsed
            self.controller.renew(Renew((session_id,)), client=client)
            calls = action.tool_calls
            replies = (Message("tool", action.problem, tool_call_id=call.id, name=call.name) for call in calls)
            return Observation(tuple(replies), invalid=True)
        act = Act(session_id, progress.acts, action, request_id=f"agentrl-{secrets.token_hex(8)}")
        observation: Observation = await self.controller.turn(act, client=client)
        progress.acts += 1
        return observation

    async def _answered(
        self, session_id: str, progress: Progress, observation: Observation, action: Action | None = None
    ) -> Json:
        stop = Stop.DONE if observation.done else Stop.MAX_TURNS if progress.turn >= progress.max_turns else None
        if stop is not None:
            await self._close(session_id)
        return translate.answer_of(observation, action=action, total=progress.total, stop=stop)

    async def _passed(self, session_id: str, raw: bytes) -> Json:
        answer = translate.passed(read_json(raw))
        if answer.get("finish"):
            await self._close(session_id)
        return answer

    async def _failed(self, session_id: str, error: EnvironmentFailed) -> Json:
        """A failed session ends with a status, as on AgentRL's workers, and without a reward."""
        await self._close(session_id)
        return {"messages": []} | translate.ending(Stop.FAILED, result=str(error))

    async def _close(self, session_id: str) -> None:
        self.progress.pop(session_id, None)
        with contextlib.suppress(LudusError):  # it or its worker is gone already
            await self.controller.close(Close(session_id), client=self._owner(session_id))

    def _close_soon(self, session_id: str) -> None:
        self._background.spawn(self._close(session_id))

    def _cancel(self, session_id: str, *, client: str) -> None:
        if self._owner(session_id) == client:
            self._close_soon(session_id)

    def _owner(self, session_id: str) -> str:
        return self.controller.roster.owner(session_id)

    def _forget_expired(self) -> None:
        """Drops expired sessions; only now and then, so that a start has constant cost."""
        live = self.controller.roster.sessions
        if len(self.progress) > 2 * len(live) + 64:
            self.progress = {session_id: each for session_id, each in self.progress.items() if session_id in live}

    def _guarded(self, route: Route) -> Route:
        """Requires an access token; answers 400 for several statuses, as AgentRL expects."""

        async def guarded(request: Request) -> Response:
            try:
                if route != self.version:
                    authorization = _bearer(request.headers.get("authorization"))
                    request.state.client = authorised(self.controller, request, authorization=authorization)
                answer = await route(request)
            except LudusError as error:
                fault = fault_of(error)
                full = isinstance(error, ControllerFailed) and error.status == 503
                status = 400 if fault.status in (404, 409, 410, 422) or full else fault.status
                return json({"message": fault.message}, status=status)
            return answer if isinstance(answer, Response) else json(answer)

        return guarded


_GET = ("get_indices", "list_workers", "list_sessions", "version")
_POST = (
    "start_sample", "interact", "cancel", "cancel_all", "mark_stale", "clean_worker", "clean_session", "sync_all",
    "receive_heartbeat", "cancel_notice",
)  # fmt: skip


def _bearer(authorization: str | None) -> str | None:
    """AgentRL sends an access token in the URL; it arrives as a basic authentication password."""
    scheme, _, value = (authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return authorization
    try:
        _, _, token = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return f"Bearer {token}"


def _session_id(request: Request) -> str:
    number = request.headers.get("session_id", "")
    if not number.isascii() or not number.isdigit():
        raise ControllerFailed(
            f"header session_id is {number!r:.40}; expected the number that start_sample returned", status=400
        )
    return _checked_id(int(number))


def _checked_id(number: int) -> str:
    if not 0 <= number < 2**ID_BITS:
        raise ControllerFailed(f"no session {number!r:.40} here", status=400)
    return session_id_of(number)
