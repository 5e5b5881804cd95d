"""The controller's websockets: the calls that clients (/link) and workers (/link/worker) may make.

Promise: a caller without a valid access token is refused before the websocket is accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from ludus.controller import records
from ludus.controller.records import Ended, Heartbeat, Register, Registered
from ludus.controller.runtime import first_of
from ludus.controller.service.server import Controller
from ludus.controller.service.workers import ConnectedWorker
from ludus.errors import ControllerFailed, LudusError
from ludus.wire.codec import encode, fault_of
from ludus.wire.connection import Connection, Handler

RECHECK_S = 1.0
"""Seconds between checks of an open connection's access token."""


class WebSocketTransport:
    """A websocket of the HTTP server as the transport of a Connection."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def send(self, data: bytes) -> None:
        await self._websocket.send_bytes(data)

    async def recv(self) -> bytes | str:
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005), message.get("reason") or "closed by the other end")
        data: bytes | str = message.get("bytes") or message.get("text") or b""
        return data

    async def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # closed already, from either side
            await self._websocket.close()


async def serve_client(websocket: WebSocket) -> None:
    controller: Controller = websocket.app.state.controller
    client = await _accepted(websocket, controller)
    if client is None:
        return
    handlers = client_handlers(controller, client)
    connection = Connection(WebSocketTransport(websocket), handlers=handlers, peer=f"client {client}")
    connections = controller.client_connections[client]
    connections.add(connection)
    await _run(connection, websocket, controller, over=lambda _: connections.discard(connection))


async def serve_worker(websocket: WebSocket) -> None:
    controller: Controller = websocket.app.state.controller
    owner = await _accepted(websocket, controller)
    if owner is None:
        return
    worker: ConnectedWorker | None = None

    def register(body: Register) -> Registered:
        nonlocal worker
        joining = ConnectedWorker(body.worker_id, connection=connection)
        answer = controller.join(joining, body, owner=owner)
        worker, connection.peer = joining, f"worker {joining.id}"
        return answer

    def worker_id() -> str:
        if worker is None:
            raise ControllerFailed("call `register` first", status=409)
        return worker.id

    def over(reason: str) -> None:
        if worker is not None:
            controller.away(worker, reason=reason)

    handlers = {
        "register": Handler(Register, register),
        "heartbeat": Handler(Heartbeat, lambda body: controller.heard(worker_id(), leaving=body.draining)),
        "ended": Handler(Ended, lambda body: controller.ended(worker_id(), body)),
    }
    connection = Connection(WebSocketTransport(websocket), handlers=handlers, peer="a worker")
    await _run(connection, websocket, controller, over=over)


def client_handlers(controller: Controller, client: str) -> dict[str, Handler]:
    own: dict[str, tuple[Any, Callable[..., Any]]] = {
        "open": (records.Open, controller.open),
        "withdraw": (records.Withdraw, controller.withdraw),
        "start": (records.Start, controller.turn),
        "act": (records.Act, controller.turn),
        "solve": (records.Solve, controller.turn),
        "close": (records.Close, controller.close),
        "renew": (records.Renew, controller.renew),
    }
    table: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        "environments": (None, lambda _: controller.environments()),
        "tasks": (records.AskTasks, controller.tasks),
        **{name: (body, partial(call, client=client)) for name, (body, call) in own.items()},
    }
    return {name: Handler(body, _counted(controller, client, name, call)) for name, (body, call) in table.items()}


def _counted(controller: Controller, client: str, name: str, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    count = controller.metrics.calls.labels(call=name, by="websocket").inc

    def counted(body: Any) -> Any:
        count()
        controller.rates.take(client)
        return call(body)

    return counted


async def _accepted(websocket: WebSocket, controller: Controller) -> str | None:
    try:
        client = controller.access_tokens.client(websocket.headers.get("authorization"))
    except LudusError as error:
        fault = fault_of(error)
        await websocket.send_denial_response(Response(encode(fault), fault.status, media_type="application/json"))
        return None
    await websocket.accept()
    return client


async def _run(
    connection: Connection, websocket: WebSocket, controller: Controller, *, over: Callable[[str], None]
) -> None:
    """Runs until the connection is over, or its access token is revoked or expires."""
    revoked = _until_revoked(websocket, controller)
    async with first_of(_running(connection, over), revoked) as (_, watching):
        if watching.done():
            await websocket.close(1008, watching.result()[:100])


async def _running(connection: Connection, over: Callable[[str], None]) -> None:
    """Calls `over` before any caller that waited on this connection resumes."""
    reason = "it was closed here"
    try:
        reason = await connection.run()
    finally:
        over(reason)


async def _until_revoked(websocket: WebSocket, controller: Controller) -> str:
    header = websocket.headers.get("authorization")
    while True:
        await asyncio.sleep(RECHECK_S)
        try:
            controller.access_tokens.client(header)
        except LudusError as error:
            return str(error)
