"""The controller's HTTP API, for curl and scripts. The bodies are the records of the wire, as JSON.

POST   /sessions               open one (queues for a slot)    GET  /sessions, /sessions/{id}
POST   /sessions/{id}/start    the first observation           GET  /environments
POST   /sessions/{id}/act      one turn                        GET  /environments/{name}/tasks
POST   /sessions/{id}/solve    the solver's action             GET  /workers
POST   /sessions/renew, /sessions/withdraw                     POST /workers/{id}/drain, .../undrain
DELETE /sessions/{id}          close it                        GET  /health, /metrics, /openapi.json
"""

from __future__ import annotations

import secrets
from collections.abc import Coroutine, Iterable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from ludus.controller import records
from ludus.controller.records import Described, Open, Opened, Renew, Renewed, Withdraw
from ludus.controller.runtime import first_of
from ludus.controller.service.limits import SizeLimit
from ludus.controller.service.openapi import describe, documented
from ludus.controller.service.roster import Seat
from ludus.controller.service.server import Controller
from ludus.controller.service.sockets import serve_client, serve_worker
from ludus.controller.service.waiting import Session
from ludus.errors import ControllerFailed, LudusError
from ludus.types import Action, Observation, Task
from ludus.wire.codec import Fault, Record, encode, fault_of

T = TypeVar("T")
MAX_PAGE = 1000
HUNG_UP = 499
HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    413: {"Connection": "close"},  # or the rest would have to be read
    429: {"Retry-After": "1"},
}


class ActBody(Record, frozen=True):
    turn: Annotated[int, msgspec.Meta(ge=0)]
    """Counts from 0."""
    action: Action
    request_id: records.Id = ""
    """A repeat of the turn with the same id gets the same observation; without it, a refusal."""


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
    """fit, full, drained (by an operator), leaving (draining itself) or away (disconnected)."""
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


def make_app(controller: Controller, *, routers: Iterable[APIRouter] = ()) -> FastAPI:
    """`routers`: further routes, for third-party clients and workers."""
    app = FastAPI(docs_url=None, redoc_url=None)
    app.state.controller = controller
    for each in (open_router, router, sessions, *routers):
        app.include_router(each)
    app.add_api_websocket_route("/link", serve_client)
    app.add_api_websocket_route("/link/worker", serve_worker)
    for kind in (Exception, LudusError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _on_failure)
    app.add_middleware(SizeLimit, max_bytes=controller.settings.max_request_bytes)
    app.openapi = lambda: describe(app, records=RECORDS)  # type: ignore[method-assign]
    return app


# Routes and dependencies are async even where they wait for nothing: others would run on threads.


async def controller_of(request: Request) -> Controller:
    controller: Controller = request.app.state.controller
    return controller


def authorised(controller: Controller, request: Request, *, authorization: str | None) -> str:
    """The name of the client that calls; counts the call against its rate."""
    client = controller.access_tokens.client(authorization)
    controller.metrics.calls.labels(call=request.scope["route"].name, by="http").inc()
    controller.rates.take(client)
    return client


async def client_of(request: Request) -> str:
    authorization = request.headers.get("authorization")
    return authorised(await controller_of(request), request, authorization=authorization)


Controlled = Annotated[Controller, Depends(controller_of)]
Client = Annotated[str, Depends(client_of)]
Offset = Annotated[int, Query(ge=0, description="Number of entries to skip.")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Largest number of entries to return.")]


async def read(request: Request, record: type[T]) -> T:
    """The body as this record; 400 if it is not JSON, 422 if it has another shape."""
    data = await request.body()
    try:
        return msgspec.json.decode(data, type=record)
    except msgspec.ValidationError as error:
        raise ControllerFailed(f"not a valid {record.__name__}: {error}", status=422) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ControllerFailed(f"the body is not JSON: {error}", status=400) from None


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Cancels `work` if the caller disconnects, which is the next message after the whole body."""
    async with first_of(work, request.receive()) as (working, _):
        if not working.done():
            raise ControllerFailed("the client disconnected", status=HUNG_UP)
        result: T = working.result()
        return result


def json(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encode(value), status, headers=headers, media_type="application/json")


async def _on_failure(request: Request, error: Exception) -> Response:
    fault = _fault(error)
    (await controller_of(request)).metrics.refused.labels(status=fault.status).inc()
    return json(fault, status=fault.status, headers=HEADERS.get(fault.status))


def _fault(error: Exception) -> Fault:
    if isinstance(error, HTTPException):
        return Fault("ControllerFailed", str(error.detail), error.status_code)
    if isinstance(error, RequestValidationError):
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        return Fault("ControllerFailed", problems, 422)
    return fault_of(error)


GONE = (403, 404, 409, 410, 503)
ASKING = (400, 404, 409, 410, 413, 502, 503, 504)
ACTING = (400, 403, 404, 409, 410, 413, 502, 503, 504)
open_router = APIRouter(tags=["service"])
router = APIRouter(dependencies=[Depends(client_of)])
sessions = APIRouter(prefix="/sessions", tags=["sessions"], dependencies=[Depends(client_of)])


@open_router.get("/health", **documented(Health))
async def health(controller: Controlled) -> Response:
    """Whether the service runs; needs no access token."""
    roster = controller.roster
    return json(Health("ok", len(roster.seats), len(roster.sessions), len(roster.waiting)))


@router.get("/metrics", tags=["service"], response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(controller: Controlled) -> Response:
    """Metrics for Prometheus."""
    return Response(controller.metrics.text(), media_type="text/plain; version=0.0.4")


@router.get("/environments", tags=["environments"], **documented(tuple[Described, ...]))
async def list_environments(controller: Controlled) -> Response:
    """The environments of all workers."""
    return json(controller.environments())


@router.get("/environments/{name:path}/tasks", tags=["environments"], **documented(TaskPage, faults=ASKING))
async def list_tasks(
    name: str, controller: Controlled, split: str = "train", offset: Offset = 0, limit: Limit = 100
) -> Response:
    """One page of a split's tasks; each can be sent to `POST /sessions` as it is."""
    tasks = await controller.tasks(records.AskTasks(name, split))
    return json(TaskPage(len(tasks), tasks[offset : offset + limit]))


@sessions.post("", **documented(Opened, body=Open, status=201, faults=ASKING))
async def open_session(request: Request, controller: Controlled, client: Client) -> Response:
    """Open a session for a task. Waits for a free slot, at most `wait_s`."""
    wanted = await read(request, Open)
    return json(await while_connected(request, controller.open(wanted, client=client)), status=201)


@sessions.get("", **documented(SessionPage))
async def list_sessions(
    controller: Controlled,
    environment: str = "",
    worker: str = "",
    owner: Annotated[str, Query(description="The client that opened them.")] = "",
    state: Literal["", "waiting", "opening", "open", "closing"] = "",
    offset: Offset = 0,
    limit: Limit = 100,
) -> Response:
    """One page of the sessions that wait or live and match every filter given."""
    wanted = {"environment": environment, "worker_id": worker, "client": owner, "state": state}
    filters = [(name, value) for name, value in wanted.items() if value]
    listed = map(_session_row, (*controller.roster.waiting, *controller.roster.sessions.values()))
    rows = [row for row in listed if all(getattr(row, name) == value for name, value in filters)]
    return json(SessionPage(len(rows), tuple(rows[offset : offset + limit])))


@sessions.post("/renew", **documented(Renewed, body=Renew, faults=(400, 413)))
async def renew_sessions(request: Request, controller: Controlled, client: Client) -> Response:
    """Renew the leases of several sessions at once."""
    return json(controller.renew(await read(request, Renew), client=client))


@sessions.post("/withdraw", **documented(None, body=Withdraw, faults=(400, 413)))
async def withdraw_request(request: Request, controller: Controlled, client: Client) -> Response:
    """Cancel a request to open: it leaves the queue, and its session, if opened, is closed."""
    controller.withdraw(await read(request, Withdraw), client=client)
    return json(None)


@sessions.get("/{session_id}", **documented(SessionRow, faults=GONE))
async def show_session(session_id: str, controller: Controlled, client: Client) -> Response:
    """One session of yours; if it is over, the reason."""
    waiting = controller.roster.waiting.get(session_id)
    if waiting is not None and waiting.spec.client == client:
        return json(_session_row(waiting))
    return json(_session_row(controller.roster.find(session_id, client=client)))


@sessions.delete("/{session_id}", **documented(None, faults=GONE))
async def close_session(session_id: str, controller: Controlled, client: Client) -> Response:
    """Close a session and free its slot. Closing one that is over already succeeds."""
    await controller.close(records.Close(session_id), client=client)
    return json(None)


@sessions.post("/{session_id}/start", **documented(Observation, faults=ACTING))
async def start_session(session_id: str, controller: Controlled, client: Client) -> Response:
    """The first observation."""
    return json(await controller.turn(records.Start(session_id), client=client))


@sessions.post("/{session_id}/act", **documented(Observation, body=ActBody, faults=ACTING))
async def act(session_id: str, request: Request, controller: Controlled, client: Client) -> Response:
    """One turn: takes an action, returns an observation."""
    body = await read(request, ActBody)
    turn = records.Act(session_id, body.turn, body.action, body.request_id or secrets.token_hex(8))
    return json(await controller.turn(turn, client=client))


@sessions.post("/{session_id}/solve", **documented(Action, body=SolveBody, faults=ACTING))
async def solve(session_id: str, request: Request, controller: Controlled, client: Client) -> Response:
    """The action of the environment's solver, or of a random player. It is not carried out."""
    body = await read(request, SolveBody)
    return json(await controller.turn(records.Solve(session_id, body.player, body.seed), client=client))


@router.get("/workers", tags=["workers"], **documented(tuple[WorkerRow, ...]))
async def list_workers(controller: Controlled) -> Response:
    return json([_worker_row(seat) for seat in controller.roster.seats.values()])


@router.post("/workers/{worker_id}/drain", tags=["workers"], **documented(WorkerRow, faults=(404,)))
async def drain_worker(worker_id: str, controller: Controlled) -> Response:
    """Place nothing more on a worker; its sessions continue. Survives restarts."""
    controller.drain(worker_id, draining=True)
    return json(_worker_row(controller.roster.seats[worker_id]))


@router.post("/workers/{worker_id}/undrain", tags=["workers"], **documented(WorkerRow, faults=(404,)))
async def undrain_worker(worker_id: str, controller: Controlled) -> Response:
    """Place sessions on a drained worker again."""
    controller.drain(worker_id, draining=False)
    return json(_worker_row(controller.roster.seats[worker_id]))


def _session_row(session: Session) -> SessionRow:
    spec, task = session.spec, session.spec.task
    return SessionRow(
        session.id, session.state, task.environment, task.split, task.id, spec.client, worker_id=session.worker_id
    )


def _worker_row(seat: Seat) -> WorkerRow:
    flags = {
        "away": seat.away_until is not None,
        "drained": seat.drained,
        "leaving": seat.leaving,
        "full": not seat.free,
    }
    state = next((name for name, holds in flags.items() if holds), "fit")
    environments = tuple(sorted(seat.environments))
    return WorkerRow(seat.worker_id, state, environments, seat.slots, len(seat.sessions), seat.address)
