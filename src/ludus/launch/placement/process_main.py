"""A rollout process: processes.py starts `python -m ludus.launch.placement.process_main FD PARENT`.

Promise: it ends when the run does. A failure of its setup is the answer to the run's first call.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import traceback
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from ludus.config import parse_config
from ludus.engines.linked import LinkedEngine
from ludus.errors import EnvironmentFailed, LudusError, first_fault
from ludus.garbage import rarely_collected
from ludus.launch.context import make_chat, make_player
from ludus.launch.environments import make_client
from ludus.launch.placement.processes import Play, Played, Setup, not_plain
from ludus.launch.policies import Endpoints
from ludus.models.loading.load import load_tokenizer
from ludus.processes.parent import parent_socket
from ludus.rollout.player import LocalPlayer
from ludus.types import Trajectory
from ludus.wire.connection import Connection, Handler
from ludus.wire.stream import StreamTransport

STATS_S = 0.1
"""Between two reports of the sessions' activity."""


class RolloutServer:
    """Plays orders of the run at the other end of the connection."""

    def __init__(self, transport: StreamTransport) -> None:
        handlers = {"setup": Handler(Setup, self.setup), "play": Handler(Play, self.play)}
        self.connection = Connection(transport, handlers=handlers, peer="the run")
        self.closing = AsyncExitStack()
        self._player: LocalPlayer | None = None

    async def setup(self, setup: Setup) -> None:
        config = parse_config(setup.config)
        client = await make_client(config, folder=Path(setup.folder), workers=setup.workers)
        self.closing.push_async_callback(client.close)
        endpoints = Endpoints(config.cross_policy)
        self.closing.push_async_callback(endpoints.close)
        chat = make_chat(config, load_tokenizer(setup.model_folder))
        self._player = make_player(
            config,
            client=client,
            sampler=endpoints.sampler(LinkedEngine(self.connection), chat=chat),
            chat=chat,
            max_turns=setup.max_turns,
        )
        self.closing.enter_context(rarely_collected())
        reporting = asyncio.create_task(self._report(self._player))
        self.closing.callback(reporting.cancel)

    async def play(self, play: Play) -> None:
        assert self._player is not None, "setup comes first"

        def send(trajectory: Trajectory) -> None:
            try:
                self.connection.tell("played", Played(play.number, trajectory))
            except TypeError as error:
                raise EnvironmentFailed(not_plain(f"a trajectory of {play.order.task.id}", error)) from error

        try:
            await self._player.play(play.order, on_trajectory=send)
        except Exception as error:
            fault = first_fault(error) if isinstance(error, BaseExceptionGroup) else error
            if isinstance(fault, LudusError):
                raise fault from None
            raise LudusError(f"a bug in the rollout process:\n{traceback.format_exc()}") from error

    async def _report(self, player: LocalPlayer) -> None:
        while True:
            await asyncio.sleep(STATS_S)
            self.connection.tell("stats", player.stats())


async def serve(end: socket.socket) -> None:
    server = RolloutServer(await StreamTransport.over(end))
    async with server.closing:
        await server.connection.run()


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    with suppress(EOFError):
        asyncio.run(serve(parent_socket(sys.argv)))
    os._exit(0)  # threads of an environment's author must not keep it
