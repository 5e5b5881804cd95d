"""What AgentRL's evaluator, trainer and workers call: /api. Promise: their calls, their answers, our queue, leases and limits behind them.

Sessions on AgentRL workers pass in their own words, so that no field is lost. Sessions of our environments are translated, and end here
where the rollout would end them: their evaluator knows no limit of turns. Where a session would be refused for want of a slot it waits,
and only then gets the 400 that they expect. A token travels as the password of the URL (http://any:TOKEN@host:port/api).
"""

from __future__ import annotations

import asyncio
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

from ludus.controller.agentrl.fleet import Fleet
from ludus.controller.agentrl.translate import (
    CUSTOM,
    Index,
    Json,
    action_of,
    answer_of,
    ending,
    names_of,
    passed,
    position_of,
    task_of,
)
from ludus.controller.agentrl.wires import read_json
from ludus.controller.agentrl.workers import DIALECT
from ludus.controller.records import Act, AskTasks, Close, Open, Renew, Start
from ludus.controller.service.hangups import while_connected
from ludus.controller.service.ids import number_of, session_id_of
from ludus.controller.service.server import Controller
from ludus.errors import ConfigError, ControllerFailed, EnvironmentFailed, LudusError, nearest
from ludus.types import Action, Message, Observation, Stop, Task
from ludus.wire.codec import decode, encode, fault_of

_seeds = random.Random()  # of its own: the global state belongs to environments' authors, and checks watch it
PREFIX = "/api"
LEASE_S = 660.0
"""Between two calls: a slow model may think for ten minutes, and their evaluator renews nothing."""
WAIT_S = 300.0
TIMEOUT_S = 240.0
MAX_TURNS = 50
"""Of an environment that leaves it to the run."""
Route = Callable[[Request], Awaitable[Any]]


@dataclass(slots=True)
class Game:
    """A session of one of our environments, as their client sees it."""

    max_turns: int
    turn: int = 0
    acts: int = 0
    """Turns that reached the environment: calls that cannot be read are answered here."""
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


class FrontDoor:
    def __init__(self, controller: Controller, *, wait_s: float = WAIT_S) -> None:
        self.controller, self.wait_s = controller, wait_s
        self.fleet = Fleet(controller)
        self.games: dict[str, Game] = {}
        self._background: set[asyncio.Task[None]] = set()
        self.router = APIRouter(prefix=PREFIX, include_in_schema=False)
        for method, names in {"GET": _GET, "POST": _POST}.items():
            for name in names:
                self.router.add_api_route(
                    f"/{name}", _guarded(getattr(self, name)), methods=[method], name=f"agentrl.{name}"
                )

    async def close(self) -> None:
        await self.fleet.close()

    # -------------------------------------------------------------------------------------------- their clients

    async def get_indices(self, request: Request) -> list[Index]:
        self._client(request)
        name = request.query_params.get("name", "")
        worker = self._agentrl(name)
        if worker is not None:
            return list(worker.indices)
        return list(range(len(await self._tasks(name))))

    async def start_sample(self, request: Request) -> Response:
        client = self._client(request)
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
        opened = await while_connected(request, self.controller.open(opening, client=client))
        answer = await self._start(opened.session_id, task, client=client)
        return Response(
            encode(answer),
            media_type="application/json",
            headers={"session_id": str(number_of(opened.session_id))},
        )

    async def interact(self, request: Request) -> Json:
        client = self._client(request)
        session_id = _session_id(request)
        messages = decode(await request.body(), Interact).messages
        worker = self.controller.worker_of(session_id, client=client)
        if worker.dialect != DIALECT:
            return await self._turn(session_id, read_json(bytes(messages)), client=client)
        self.controller.renew(Renew((session_id,)), client=client)
        try:
            raw = await worker.raw(session_id, call="interact", body=bytes(messages))
        except EnvironmentFailed as error:
            return await self._failed(session_id, error, client=client)
        finally:
            self.controller.renew(Renew((session_id,)), client=client)
        return await self._passed(session_id, raw, client=client)

    async def cancel(self, request: Request) -> None:
        """At once; what happens behind it is nobody's wait."""
        client = self._client(request)
        self._close_soon(_session_id(request), client=client)

    async def cancel_all(self, request: Request) -> None:
        client = self._client(request)
        name, force = request.query_params.get("name", ""), request.query_params.get("force", "")
        mine = [each for each in self.controller.roster.sessions.values() if each.ask.client == client]
        if not name and force.lower() not in ("1", "true") and len({each.ask.environment for each in mine}) > 1:
            raise ControllerFailed("sessions of several environments are open; name one, or say force=true", status=403)
        for session in mine:
            if not name or session.ask.environment in (name, self._known_names().get(name, ("", ""))[0]):
                self._close_soon(session.id, client=client)

    # -------------------------------------------------------------------------------------------- their operators

    async def list_workers(self, request: Request) -> list[Json]:
        self._client(request)
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

    async def list_sessions(self, request: Request) -> list[Json]:
        self._client(request)
        return [
            {
                "session_id": number_of(session.id),
                "name": session.ask.environment,
                "task_id": session.ask.task_id,
                "worker_id": session.worker_id,
                "state": session.state,
            }
            for session in self.controller.roster.sessions.values()
        ]

    async def mark_stale(self, request: Request) -> None:
        self._client(request)
        wanted = decode(await request.body(), MarkStale)
        self.controller.drain(wanted.worker_id, draining=wanted.stale)

    async def clean_worker(self, request: Request) -> None:
        self._client(request)
        worker_id = decode(await request.body(), MarkStale).worker_id
        self.controller.lost(worker_id, reason="an operator removed it")

    async def clean_session(self, request: Request) -> None:
        client = self._client(request)
        number = decode(await request.body(), SessionNumber).session_id
        self._close_soon(_checked_id(number), client=client)

    async def sync_all(self, request: Request) -> None:
        self._client(request)
        await self.fleet.reconcile()

    async def version(self, request: Request) -> Json:
        return {"variant": "nova", "version": 1}

    # -------------------------------------------------------------------------------------------- their workers

    async def receive_heartbeat(self, request: Request) -> None:
        owner = self._client(request)
        await self.fleet.beat(await request.body(), owner=owner)

    async def cancel_notice(self, request: Request) -> None:
        self._client(request)
        self.fleet.noticed(decode(await request.body(), SessionNumber).session_id)

    # -------------------------------------------------------------------------------------------- which task

    async def _task(self, wanted: StartSample) -> Task:
        worker = self._agentrl(wanted.name)
        if worker is None:
            if wanted.index == CUSTOM:
                raise ConfigError(f"{wanted.name} takes no custom tasks; its index is 0 or more")
            tasks = await self._tasks(wanted.name)
            return tasks[position_of(wanted.index, task_ids=[task.id for task in tasks])]
        index = wanted.index
        if index == CUSTOM and wanted.custom_task is None:
            raise ConfigError("index -1 means a task that you bring: send custom_task")
        if (
            isinstance(index, int)
            and index not in worker.known
            and all(isinstance(each, str) for each in worker.indices)
        ):
            index = worker.indices[index] if 0 <= index < len(worker.indices) else index
        if index not in worker.known:
            raise ConfigError(f"{wanted.name} has no task with index {index!r:.80}")
        return task_of(wanted.name, index, custom=wanted.custom_task if index == CUSTOM else None)

    async def _tasks(self, name: str) -> tuple[Task, ...]:
        known = self._known_names()
        if name not in known:
            raise ConfigError(
                f"no worker has {name!r:.80}.{nearest(name, known)} Known: {', '.join(sorted(known)) or 'none'}."
            )
        environment, split = known[name]
        return await self.controller.tasks(AskTasks(environment, split))

    def _known_names(self) -> dict[str, tuple[str, str]]:
        """Their name for each of our environments and splits; an environment's own name comes first."""
        known: dict[str, tuple[str, str]] = {}
        for described in self.controller.environments():
            for name, split in names_of(described.name, described.splits):
                known.setdefault(name, (described.name, split))
        return known

    def _agentrl(self, name: str) -> Any:
        return next((worker for worker in self.fleet.workers.values() if worker.name == name), None)

    # -------------------------------------------------------------------------------------------- sessions

    async def _start(self, session_id: str, task: Task, *, client: str) -> Json:
        try:
            worker = self.controller.worker_of(session_id, client=client)
            if worker.dialect == DIALECT:
                raw = await worker.raw(session_id, call="start_sample", body=b"")
                return await self._passed(session_id, raw, client=client)
            observation = await self.controller.start(Start(session_id), client=client)
        except EnvironmentFailed as error:
            return await self._failed(session_id, error, client=client)
        except BaseException:
            self._close_soon(session_id, client=client)
            raise
        self._forget_the_dead()
        limit = self.controller.described[task.environment].max_turns or MAX_TURNS
        self.games[session_id] = game = Game(max_turns=limit, total=observation.reward)
        return await self._answered(session_id, game, observation, client=client)

    async def _turn(self, session_id: str, messages: Any, *, client: str) -> Json:
        action = action_of(messages)
        game = self.games.get(session_id)
        if game is None:
            self._close_soon(session_id, client=client)
            raise ControllerFailed(
                "this session cannot go on, because the controller was restarted; start again", status=400
            )
        if game.busy:
            raise ControllerFailed("the session is busy with the last interaction", status=400)
        game.busy = True
        try:
            observation = await self._act(session_id, game, action, client=client)
        except EnvironmentFailed as error:
            return await self._failed(session_id, error, client=client)
        finally:
            game.busy = False
        game.turn += 1
        game.total += observation.reward
        return await self._answered(session_id, game, observation, action=action, client=client)

    async def _act(self, session_id: str, game: Game, action: Action, *, client: str) -> Observation:
        if action.problem:  # as in our own rollouts, the environment never sees what cannot be read
            self.controller.renew(Renew((session_id,)), client=client)
            told = (Message("tool", action.problem, tool_call_id=call.id, name=call.name) for call in action.tool_calls)
            return Observation(tuple(told), invalid=True)
        act = Act(session_id, game.acts, action, request_id=f"agentrl-{secrets.token_hex(8)}")
        observation = await self.controller.act(act, client=client)
        game.acts += 1
        return observation

    async def _answered(
        self, session_id: str, game: Game, observation: Observation, *, client: str, action: Action | None = None
    ) -> Json:
        stop = Stop.DONE if observation.done else Stop.MAX_TURNS if game.turn >= game.max_turns else None
        if stop is not None:
            await self._close(session_id, client=client)
        return answer_of(observation, action=action, total=game.total, stop=stop)

    async def _passed(self, session_id: str, raw: bytes, *, client: str) -> Json:
        answer = passed(read_json(raw))
        if answer.get("finish"):
            await self._close(session_id, client=client)
        return answer

    async def _failed(self, session_id: str, error: EnvironmentFailed, *, client: str) -> Json:
        """A failed session is an end with a status, as their own workers tell it; never a reward."""
        await self._close(session_id, client=client)
        return {"messages": []} | ending(Stop.FAILED, result=str(error))

    async def _close(self, session_id: str, *, client: str) -> None:
        self.games.pop(session_id, None)
        with contextlib.suppress(LudusError):  # gone already, or its worker is: the slot is the roster's business
            await self.controller.close(Close(session_id), client=client)

    def _close_soon(self, session_id: str, *, client: str) -> None:
        task = asyncio.create_task(self._close(session_id, client=client))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _forget_the_dead(self) -> None:
        """Sessions whose lease ran out; looked at now and then, so that a start costs the same however many there are."""
        live = self.controller.roster.sessions
        if len(self.games) > 2 * len(live) + 64:
            self.games = {session_id: game for session_id, game in self.games.items() if session_id in live}

    def _client(self, request: Request) -> str:
        client = self.controller.tokens.client(_bearer(request.headers.get("authorization")))
        self.controller.metrics.calls.labels(call=request.scope["route"].name, by="http").inc()
        self.controller.rates.take(client)
        return client


_GET = ("get_indices", "list_workers", "list_sessions", "version")
_POST = (
    "start_sample", "interact", "cancel", "cancel_all", "mark_stale", "clean_worker", "clean_session", "sync_all",
    "receive_heartbeat", "cancel_notice",
)  # fmt: skip


def _guarded(route: Route) -> Route:
    """Their clients know 400 where we distinguish more."""

    async def guarded(request: Request) -> Response:
        try:
            answer = await route(request)
        except LudusError as error:
            fault = fault_of(error)
            status = 400 if fault.status in (404, 409, 410, 422) or _is_full(error) else fault.status
            return Response(encode({"message": fault.message}), status, media_type="application/json")
        return answer if isinstance(answer, Response) else Response(encode(answer), media_type="application/json")

    return guarded


def _is_full(error: LudusError) -> bool:
    return isinstance(error, ControllerFailed) and error.status == 503


def _bearer(authorization: str | None) -> str | None:
    """Their programs can only put a token into the URL, which arrives as the password of basic authentication."""
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
            f"header session_id is {number!r:.40}; expected the number that start_sample gave", status=400
        )
    return _checked_id(int(number))


def _checked_id(number: int) -> str:
    if not 0 <= number < 2**48:
        raise ControllerFailed(f"no session {number!r:.40} here", status=400)
    return session_id_of(number)
