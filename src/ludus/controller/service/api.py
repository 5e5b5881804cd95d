"""The controller over HTTP with JSON, for curl and scripts. Promise: the records of the wire, and statuses that fit.

POST /sessions                open one (queues for a slot)        GET  /sessions, /sessions/{id}
POST /sessions/{id}/start     the first observation               GET  /environments, /environments/{name}/tasks
POST /sessions/{id}/act       one turn                            GET  /workers
POST /sessions/{id}/solve     what the environment would do       POST /workers/{id}/drain, /workers/{id}/undrain
POST /sessions/renew, /sessions/withdraw                          GET  /health, /metrics, /openapi.json
DELETE /sessions/{id}         close it                            WS   /link, /link/worker
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response, WebSocket
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from ludus.controller.records import (
    Act,
    AskTasks,
    Close,
    Described,
    Id,
    Open,
    Opened,
    Renew,
    Renewed,
    Solve,
    Start,
    Withdraw,
)
from ludus.controller.service.hangups import while_connected
from ludus.controller.service.limits import SizeLimit
from ludus.controller.service.openapi import answers, describe, takes
from ludus.controller.service.roster import Seat
from ludus.controller.service.server import Controller
from ludus.controller.service.sockets import serve_client, serve_worker
from ludus.controller.service.waiting import Ask
from ludus.errors import ControllerFailed, LudusError
from ludus.types import Action, Observation, Task
from ludus.wire.codec import Fault, Record, encode, fault_of

T = TypeVar("T")
MAX_PAGE = 1000
HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    413: {"Connection": "close"},  # or the rest would have to be read
    429: {"Retry-After": "1"},
}


class ActBody(Record, frozen=True):
    turn: Annotated[int, msgspec.Meta(ge=0)]
    """Counts from 0."""
    action: Action
    request_id: Id = ""
    """The same turn again with the same id is answered with the same observation; without one, a repeated turn is refused."""


class SolveBody(Record, frozen=True):
    player: Literal["solve", "random_action"] = "solve"
    seed: int = 0


class TaskPage(Record, frozen=True):
    total: int
    tasks: tuple[Task, ...]


class SessionRow(Record, frozen=True, omit_defaults=False):
    session_id: str
    state: str
    """waiting, opening, open or closing."""
    environment: str
    split: str
    task_id: str
    client: str
    worker_id: str = ""


class SessionPage(Record, frozen=True):
    total: int
    sessions: tuple[SessionRow, ...]


class WorkerRow(Record, frozen=True, omit_defaults=False):
    worker_id: str
    state: str
    """fit, full, drained (by an operator), leaving (by itself) or away (its link is broken)."""
    environments: tuple[str, ...]
    slots: int
    num_sessions: int
    address: str = ""


class Health(Record, frozen=True):
    status: str
    num_workers: int
    num_sessions: int
    num_waiting: int


RECORDS = (
    Open, Opened, ActBody, SolveBody, Renew, Renewed, Withdraw, Described, TaskPage, SessionRow, SessionPage, WorkerRow, Health, Fault,
    Observation, Action,
)  # fmt: skip


def make_app(controller: Controller, *, doors: Iterable[APIRouter] = ()) -> FastAPI:
    """`doors`: routers for clients and workers that speak another system's words."""
    app = FastAPI(docs_url=None, redoc_url=None)
    app.state.controller = controller
    app.include_router(open_router)
    app.include_router(router)
    for door in doors:
        app.include_router(door)
    app.add_api_websocket_route("/link", _client_link)
    app.add_api_websocket_route("/link/worker", _worker_link)
    app.add_exception_handler(Exception, _on_failure)
    for kind in (LudusError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _on_failure)
    app.add_middleware(SizeLimit, max_bytes=controller.settings.max_request_bytes)
    app.openapi = lambda: describe(app, records=RECORDS)  # type: ignore[method-assign]
    return app


async def _client_link(websocket: WebSocket) -> None:
    await serve_client(websocket, websocket.app.state.controller)


async def _worker_link(websocket: WebSocket) -> None:
    await serve_worker(websocket, websocket.app.state.controller)


# ------------------------------------------------------------------------------------------------ what routes are given


# Routes and what they depend on are async, also where they wait for nothing: others would run on threads, beside the loop's own work.


async def controller_of(request: Request) -> Controller:
    return _controller(request)


def _controller(request: Request) -> Controller:
    controller: Controller = request.app.state.controller
    return controller


async def client_of(request: Request) -> str:
    """Who calls, by the token; counted against its rate."""
    controller = _controller(request)
    client = controller.tokens.client(request.headers.get("authorization"))
    controller.metrics.calls.labels(call=request.scope["route"].name, by="http").inc()
    controller.rates.take(client)
    return client


Controlled = Annotated[Controller, Depends(controller_of)]
Client = Annotated[str, Depends(client_of)]
Offset = Annotated[int, Query(ge=0, description="How many to skip.")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="How many to answer at most.")]


async def read(request: Request, record: type[T]) -> T:
    """The body, as this record: 400 where it is no JSON, 422 where it is another shape."""
    data = await request.body()
    try:
        return msgspec.json.decode(data, type=record)
    except msgspec.ValidationError as error:
        raise ControllerFailed(f"not a valid {record.__name__}: {error}", status=422) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ControllerFailed(f"the body is no JSON: {error}", status=400) from None


def json(value: Any, *, status: int = 200) -> Response:
    return Response(encode(value), status, media_type="application/json")


async def _on_failure(request: Request, error: Exception) -> Response:
    fault = _fault(error)
    _controller(request).metrics.refused.labels(status=fault.status).inc()
    headers = HEADERS.get(fault.status)
    return Response(encode(fault), fault.status, headers=headers, media_type="application/json")


def _fault(error: Exception) -> Fault:
    if isinstance(error, HTTPException):
        return Fault("ControllerFailed", str(error.detail), error.status_code)
    if isinstance(error, RequestValidationError):
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        return Fault("ControllerFailed", problems, 422)
    return fault_of(error)


# ------------------------------------------------------------------------------------------------ routes

GONE = (403, 404, 409, 410, 503)
ASKING = (400, 404, 409, 410, 413, 502, 503, 504)
ACTING = (400, 403, 404, 409, 410, 413, 502, 503, 504)
open_router = APIRouter(tags=["service"])
router = APIRouter()


@open_router.get("/health", responses=answers(Health))
async def health(controller: Controlled) -> Response:
    """Whether the service runs; needs no token."""
    roster = controller.roster
    return json(Health("ok", len(roster.seats), len(roster.sessions), len(roster.waiting)))


@router.get("/metrics", tags=["service"], response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(controller: Controlled, client: Client) -> Response:
    """Figures for Prometheus."""
    return Response(controller.metrics.text(), media_type="text/plain; version=0.0.4")


@router.get("/environments", tags=["environments"], responses=answers(tuple[Described, ...]))
async def list_environments(controller: Controlled, client: Client) -> Response:
    """What the workers offer."""
    return json(controller.environments())


@router.get("/environments/{name:path}/tasks", tags=["environments"], responses=answers(TaskPage, faults=ASKING))
async def list_tasks(
    name: str, controller: Controlled, client: Client, split: str = "train", offset: Offset = 0, limit: Limit = 100
) -> Response:
    """Tasks of a split, a page at a time; each can be sent to `POST /sessions` as it is."""
    tasks = await controller.tasks(AskTasks(name, split))
    return json(TaskPage(len(tasks), tasks[offset : offset + limit]))


@router.post(
    "/sessions",
    tags=["sessions"],
    openapi_extra=takes(Open),
    responses=answers(Opened, status=201, faults=ASKING),
    status_code=201,
)
async def open_session(request: Request, controller: Controlled, client: Client) -> Response:
    """Open a session for a task. Waits for a free slot, at most `wait_s`."""
    wanted = await read(request, Open)
    return json(await while_connected(request, controller.open(wanted, client=client)), status=201)


@router.get("/sessions", tags=["sessions"], responses=answers(SessionPage))
async def list_sessions(
    controller: Controlled,
    client: Client,
    environment: str = "",
    worker: str = "",
    owner: Annotated[str, Query(description="The client that opened them.")] = "",
    state: Literal["", "waiting", "opening", "open", "closing"] = "",
    offset: Offset = 0,
    limit: Limit = 100,
) -> Response:
    """Sessions that wait or live, a page at a time, only those that fit every filter given."""
    wanted = {"environment": environment, "worker_id": worker, "client": owner, "state": state}
    filters = [(name, value) for name, value in wanted.items() if value]
    rows = [row for row in _session_rows(controller) if all(getattr(row, name) == value for name, value in filters)]
    return json(SessionPage(len(rows), tuple(rows[offset : offset + limit])))


@router.post(
    "/sessions/renew", tags=["sessions"], openapi_extra=takes(Renew), responses=answers(Renewed, faults=(400, 413))
)
async def renew_sessions(request: Request, controller: Controlled, client: Client) -> Response:
    """Renew the leases of several sessions at once."""
    return json(controller.renew(await read(request, Renew), client=client))


@router.post(
    "/sessions/withdraw", tags=["sessions"], openapi_extra=takes(Withdraw), responses=answers(None, faults=(400, 413))
)
async def withdraw_request(request: Request, controller: Controlled, client: Client) -> Response:
    """Take back a request to open: it leaves the queue, and a session that it has opened already is closed."""
    controller.withdraw(await read(request, Withdraw), client=client)
    return json(None)


@router.get("/sessions/{session_id}", tags=["sessions"], responses=answers(SessionRow, faults=GONE))
async def show_session(session_id: str, controller: Controlled, client: Client) -> Response:
    """One session of yours; when it is over, why."""
    ask = controller.roster.waiting.get(session_id)
    if ask is not None and ask.client == client:
        return json(_session_row(ask, state="waiting"))
    session = controller.roster.find(session_id, client=client)
    return json(_session_row(session.ask, state=session.state, worker_id=session.worker_id))


@router.delete("/sessions/{session_id}", tags=["sessions"], responses=answers(None, faults=GONE))
async def close_session(session_id: str, controller: Controlled, client: Client) -> Response:
    """Close it and free its slot. Closing one that is over already is fine."""
    await controller.close(Close(session_id), client=client)
    return json(None)


@router.post("/sessions/{session_id}/start", tags=["sessions"], responses=answers(Observation, faults=ACTING))
async def start_session(session_id: str, controller: Controlled, client: Client) -> Response:
    """The first observation."""
    return json(await controller.start(Start(session_id), client=client))


@router.post(
    "/sessions/{session_id}/act",
    tags=["sessions"],
    openapi_extra=takes(ActBody),
    responses=answers(Observation, faults=ACTING),
)
async def act(session_id: str, request: Request, controller: Controlled, client: Client) -> Response:
    """One turn: an action in, an observation back."""
    body = await read(request, ActBody)
    request_id = body.request_id or secrets.token_hex(8)
    return json(await controller.act(Act(session_id, body.turn, body.action, request_id), client=client))


@router.post(
    "/sessions/{session_id}/solve",
    tags=["sessions"],
    openapi_extra=takes(SolveBody),
    responses=answers(Action, faults=ACTING),
)
async def solve(session_id: str, request: Request, controller: Controlled, client: Client) -> Response:
    """What the environment's own solver, or a random player, would do now. Nothing is done."""
    body = await read(request, SolveBody)
    return json(await controller.solve(Solve(session_id, body.player, body.seed), client=client))


@router.get("/workers", tags=["workers"], responses=answers(tuple[WorkerRow, ...]))
async def list_workers(controller: Controlled, client: Client) -> Response:
    return json([_worker_row(seat) for seat in controller.roster.seats.values()])


@router.post("/workers/{worker_id}/drain", tags=["workers"], responses=answers(WorkerRow, faults=(404,)))
async def drain_worker(worker_id: str, controller: Controlled, client: Client) -> Response:
    """Place nothing more on it; what it hosts goes on. Survives restarts, its and the controller's."""
    controller.drain(worker_id, draining=True)
    return json(_worker_row(controller.roster.seats[worker_id]))


@router.post("/workers/{worker_id}/undrain", tags=["workers"], responses=answers(WorkerRow, faults=(404,)))
async def undrain_worker(worker_id: str, controller: Controlled, client: Client) -> Response:
    """Use it again."""
    controller.drain(worker_id, draining=False)
    return json(_worker_row(controller.roster.seats[worker_id]))


# ------------------------------------------------------------------------------------------------ rows


def _session_rows(controller: Controller) -> Iterator[SessionRow]:
    for ask in controller.roster.waiting:
        yield _session_row(ask, state="waiting")
    for session in controller.roster.sessions.values():
        yield _session_row(session.ask, state=session.state, worker_id=session.worker_id)


def _session_row(ask: Ask, *, state: str, worker_id: str = "") -> SessionRow:
    return SessionRow(ask.session_id, state, ask.environment, ask.split, ask.task_id, ask.client, worker_id)


def _worker_row(seat: Seat) -> WorkerRow:
    flags = {
        "away": seat.away_until is not None,
        "drained": seat.drained,
        "leaving": seat.leaving,
        "full": not seat.free,
    }
    state = next((name for name, holds in flags.items() if holds), "fit")
    return WorkerRow(
        seat.worker_id, state, tuple(sorted(seat.environments)), seat.slots, len(seat.sessions), seat.address
    )
