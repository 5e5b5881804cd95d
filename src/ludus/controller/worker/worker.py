"""A worker process: hosts sessions for a controller. Promise: it outlives any controller.

    controller ◀──connects, registers, heartbeats, ended── worker ──── sessions
        └─────open, close, renew, tasks, drain───────────────▶│
    client ───start, act, solve, close, renew──(own /link)────▶┘

SIGTERM drains it: it takes no new sessions, and its sessions continue until they are closed, their
leases expire, or the drain time is over. A second SIGTERM ends the worker at once.
"""

from __future__ import annotations

import asyncio
import http
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.http11 import Request, Response

from ludus.controller import records
from ludus.controller.client.local import LocalClient
from ludus.controller.records import Ended, Heartbeat, Register, Registered
from ludus.controller.runtime import event_loop, first_of, log_json_lines
from ludus.controller.worker.sessions import Sessions
from ludus.environments.environment import Environment
from ludus.errors import ConfigError, LudusError, WorkerLost, describe
from ludus.garbage import rarely_collected
from ludus.hosting.process_pool import PoolLimits
from ludus.wire.codec import MAX_FRAME_BYTES
from ludus.wire.connection import Connection, Handler
from ludus.wire.reconnect import connection_url, jitter, websocket_to

DRAIN_S = 600.0
CLOSE_S = 10.0
"""Seconds that the end of the worker waits for its sessions to close."""
PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
MAX_THREADS = 512
_log = logging.getLogger(__name__)


class Worker:
    """`await worker.run()` runs it until it is stopped and returns the exit status."""

    def __init__(
        self,
        environments: Iterable[Environment],
        *,
        controller: str,
        slots: int,
        token: str = "",
        host: str = "127.0.0.1",
        port: int = 0,
        drain_s: float = DRAIN_S,
        pool_limits: PoolLimits | None = None,
    ) -> None:
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._url, self._token = f"{connection_url(controller)}/worker", token
        self._host, self._port, self._drain_s = host, port, drain_s
        max_threads = min(max(slots, 16), MAX_THREADS)
        self.hosting = LocalClient(environments, max_threads=max_threads, pool_limits=pool_limits)
        self.sessions = Sessions(self.hosting, slots=slots, on_ended=self._report_ended)
        self._connection: Connection | None = None
        self._unreported: list[Ended] = []
        """Sessions that ended while there was no connection to report them."""
        self._logged = ""
        """Why there is no controller, as it was logged last."""
        self._leaving = asyncio.Event()
        self._forced = asyncio.Event()

    async def run(self) -> int:
        await self.hosting.prepare()
        self._listen_to_signals()
        async with await self._listen() as server:
            self._port = next(iter(server.sockets)).getsockname()[1]
            _log.info("worker %s listens on port %d and registers at %s", self.id, self._port, self._url)
            connecting = asyncio.create_task(self._connect_for_ever())
            try:
                await self._leaving.wait()
                async with first_of(self.sessions.empty.wait(), self._forced.wait(), limit_s=self._drain_s):
                    pass
            finally:
                await self._end(connecting)
        return 143 if self._forced.is_set() else 0

    async def _listen(self) -> Server:
        try:
            return await serve(
                self._serve_client,
                self._host,
                self._port,
                process_request=_only_link,
                compression=None,
                max_size=MAX_FRAME_BYTES,
                ping_interval=30,
                ping_timeout=60,
                close_timeout=1,
            )
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {self._host} port {self._port}: {error}; choose another with --host and --port"
            ) from None

    def stop(self) -> None:
        """Drains the worker; the second call ends it at once."""
        if self._leaving.is_set():
            _log.warning("stopped again: dropping %d sessions", len(self.sessions))
            self._forced.set()
            return
        _log.info("draining: %d sessions have up to %g s to finish", len(self.sessions), self._drain_s)
        self.sessions.draining = True
        self._leaving.set()
        if self._connection is not None:
            self._connection.tell("heartbeat", self._heartbeat())

    def _listen_to_signals(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, self.stop)
            self.hosting.host.watch.use_signals()

    async def _end(self, connecting: asyncio.Task[None]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0 if self._forced.is_set() else CLOSE_S):
                await self.sessions.end_all("its worker was stopped")
        if self._connection is not None:
            await asyncio.sleep(0.05)  # the last messages are still in the outbox
        connecting.cancel()
        with suppress(asyncio.CancelledError):
            await connecting
        await (self.hosting.kill() if self._forced.is_set() else self.hosting.close())

    async def _serve_client(self, websocket: ServerConnection) -> None:
        await Connection(websocket, handlers=self._handlers(trusted=False), peer="a client").run()

    def _handlers(self, *, trusted: bool) -> dict[str, Handler]:
        """`trusted`: for the controller, which may omit keys and give orders."""
        call = partial(self.sessions.call, trusted=trusted)
        turns = {
            "start": Handler(records.Start, call),
            "act": Handler(records.Act, call),
            "solve": Handler(records.Solve, call),
            "close": Handler(records.Close, partial(self.sessions.close, trusted=trusted)),
            "renew": Handler(records.Renew, self.sessions.renew),
        }
        orders = {
            "open": Handler(records.SessionSpec, self.sessions.open),
            "tasks": Handler(records.AskTasks, lambda ask: self.hosting.tasks(ask.environment, ask.split)),
            "drain": Handler(records.Drain, self._drain),
        }
        return turns | orders if trusted else turns

    async def _connect_for_ever(self) -> None:
        pause_s = PAUSE_S
        while True:
            try:
                reason, pause_s = await self._attend(), PAUSE_S
            except (OSError, EOFError, WebSocketException, LudusError) as error:
                reason = _explained(error, token=self._token)
            if reason != self._logged:  # once, not at every attempt
                _log.warning("no controller at %s: %s. Trying again; sessions continue", self._url, reason)
                self._logged = reason
            await asyncio.sleep(pause_s * jitter.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _attend(self) -> str:
        """Serves one connection to the controller and returns why it ended."""
        # no pings: heartbeats do that
        async with websocket_to(self._url, token=self._token, ping_interval=None) as websocket:
            handlers = self._handlers(trusted=True)
            connection = Connection(websocket, handlers=handlers, peer="the controller")
            running = asyncio.create_task(connection.run())
            try:
                await self._register(connection, websocket)
                await self._beat(connection, running)
                return await running
            finally:
                self._connection = None
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running

    async def _register(self, connection: Connection, websocket: ClientConnection) -> None:
        self._unreported.clear()
        register = Register(
            worker_id=self.id,
            environments=tuple(self.hosting.environments().values()),
            slots=self.sessions.slots,
            address=f"ws://{self._reached_at(websocket)}:{self._port}/link",
            running=self.sessions.running(),
        )
        async with asyncio.timeout(30):
            self._registered: Registered = await connection.call("register", register, answer=Registered)
        self._connection, self._logged = connection, ""
        for ended in self._unreported:
            connection.tell("ended", ended)
        _log.info("registered at %s with %d slots", self._url, self.sessions.slots)
        if self._leaving.is_set():
            connection.tell("heartbeat", self._heartbeat())
        await self.sessions.end(self._registered.unknown, message="the controller had ended it meanwhile")

    async def _beat(self, connection: Connection, running: asyncio.Task[str]) -> None:
        """Until the connection is over, or the controller is silent for three heartbeats."""
        every_s = self._registered.heartbeat_s
        while connection.alive:
            try:
                async with asyncio.timeout(3 * every_s):
                    await connection.call("heartbeat", self._heartbeat())
            except TimeoutError:
                await connection.close()
            except WorkerLost:
                return
            await asyncio.wait({running}, timeout=every_s)

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(self.id, len(self.sessions), draining=self._leaving.is_set())

    def _drain(self, drain: records.Drain) -> None:
        self.sessions.draining = drain.draining or self._leaving.is_set()

    def _report_ended(self, ended: Ended) -> None:
        if self._connection is not None:
            self._connection.tell("ended", ended)
        else:
            self._unreported.append(ended)

    def _reached_at(self, websocket: ClientConnection) -> str:
        """A worker bound to every address is reached at the one that the controller sees."""
        host = websocket.local_address[0] if self._host in ("", "0.0.0.0", "::") else self._host
        return f"[{host}]" if ":" in host else host


def _only_link(websocket: ServerConnection, request: Request) -> Response | None:
    if request.path.partition("?")[0] != "/link":
        return websocket.respond(http.HTTPStatus.NOT_FOUND, "A Ludus worker: clients connect at /link.\n")
    return None


def _explained(error: BaseException, *, token: str) -> str:
    if isinstance(error, InvalidStatus) and error.response.status_code in (401, 403):
        return "it refuses this worker's access token" if token else "it requires an access token; set LUDUS_TOKEN"
    return describe(error)


def serve_worker(environments: Iterable[Environment], **settings: Any) -> NoReturn:
    """Runs a worker and exits the process, even if author code does not end."""
    log_json_lines()

    async def main() -> NoReturn:
        status = await Worker(environments, **settings).run()
        logging.shutdown()
        os._exit(status)

    with rarely_collected(), asyncio.Runner(loop_factory=event_loop()) as runner:
        runner.run(main())
    raise AssertionError("the process has ended")
