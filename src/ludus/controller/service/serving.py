"""Runs a controller as a service. One line on stdout reports its URL when it listens."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import uvicorn

from ludus.controller.agentrl.routes import AgentrlRoutes
from ludus.controller.runtime import event_loop, log_json_lines
from ludus.controller.service.api import make_app
from ludus.controller.service.server import Controller, Settings
from ludus.errors import ControllerFailed
from ludus.wire.codec import MAX_FRAME_BYTES

STOP_S = 3
"""Seconds that calls in progress may take to end after SIGTERM."""


class Served(NamedTuple):
    controller: Controller
    url: str
    agentrl: AgentrlRoutes


def serve_controller(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT."""
    log_json_lines()
    with asyncio.Runner(loop_factory=event_loop()) as runner:
        runner.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serving(settings) as served:
        print(f"ludus controller ready at {served.url}", flush=True)
        if served.agentrl.fleet.port:
            print(f"AgentRL workers by gRPC at grpc://127.0.0.1:{served.agentrl.fleet.port}", flush=True)
        await stop.wait()


@contextlib.asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[Served]:
    """A controller that listens inside the block."""
    controller = Controller(settings)
    with contextlib.closing(_bound(settings.host, settings.port)) as bound:
        await controller.begin()
        agentrl = AgentrlRoutes(controller)
        server = _Server(_config(controller, agentrl))
        task = asyncio.create_task(server.serve(sockets=[bound]))
        try:
            await server.ready.wait()
            if settings.agentrl_grpc_port is not None:
                await agentrl.fleet.listen("127.0.0.1", settings.agentrl_grpc_port)
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            yield Served(controller, f"http://{host}:{bound.getsockname()[1]}", agentrl)
        finally:
            controller.leave()
            server.stop()
            await task
            await agentrl.fleet.close()
            await controller.end()


def _config(controller: Controller, agentrl: AgentrlRoutes) -> uvicorn.Config:
    return uvicorn.Config(
        make_app(controller, routers=[agentrl.router]),
        log_config=None,
        access_log=False,
        lifespan="off",
        date_header=False,
        ws="websockets-sansio",
        ws_max_size=MAX_FRAME_BYTES,
        ws_per_message_deflate=False,
        ws_ping_timeout=60,  # a client that trains may not answer for a while
        timeout_graceful_shutdown=STOP_S,
    )


class _Server(uvicorn.Server):
    """Leaves signals to `_serve`: uvicorn would raise them again before the journal is written."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready, self._stopping = asyncio.Event(), asyncio.Event()

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def main_loop(self) -> None:
        await self._stopping.wait()


def _bound(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ControllerFailed(
            f"cannot listen on {host} port {port}: {error}; choose another with --host and --port"
        ) from None
