"""A process that plays sessions for a run: `python -m ludus.launch.placement.process_main FD`. Promise: it ends when the
run does, and a failure at its start is told."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import sys
import traceback
from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ludus.controller.client.client import ClientSession
from ludus.errors import LudusError, first_fault
from ludus.garbage import rarely_collected
from ludus.launch.context import make_chat
from ludus.launch.environments import make_client
from ludus.launch.placement.pipe import Pipe
from ludus.launch.placement.processes import (
    Cancel,
    Doing,
    End,
    Failed,
    Hush,
    Over,
    Play,
    Played,
    Ready,
    Release,
    Said,
    Setup,
    Speak,
    sendable,
)
from ludus.models.loading.load import load_tokenizer
from ludus.rollout.arena import Arena, limits_from
from ludus.rollout.group import Order, PlaysHere
from ludus.rollout.speaker import Words
from ludus.types import Completion, Sampling, Trajectory

TELL_S = 0.1
"""Between two words about what the sessions are doing."""


class FarSpeaker:
    """Whoever speaks in the run's own process."""

    def __init__(self, pipe: Pipe, *, sends_words: bool) -> None:
        self._pipe, self._sends_words = pipe, sends_words
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Completion]] = {}

    async def speak(
        self, ids: Sequence[int], *, sampling: Sampling, session_id: str, session: ClientSession, words: Words
    ) -> Completion:
        number = next(self._numbers)
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        words = words if self._sends_words else Words()
        self._pipe.send(Speak(number, array("I", ids).tobytes(), sampling, session_id, words))
        try:
            return await answer
        except asyncio.CancelledError:
            self._pipe.send(Hush(number))
            raise
        finally:
            del self._asked[number]

    async def release(self, session_id: str) -> None:
        self._pipe.send(Release(session_id))

    def answered(self, message: Said | Failed) -> None:
        answer = self._asked.get(message.number)
        if answer is None or answer.done():  # its session is over
            return
        if isinstance(message, Said):
            answer.set_result(message.completion)
        else:
            answer.set_exception(message.error())


class Stagehand:
    """Carries out what the run's own process says."""

    def __init__(self, pipe: Pipe, player: PlaysHere, speaker: FarSpeaker) -> None:
        self._pipe, self._player, self._speaker = pipe, player, speaker
        self._playing: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until it is told to end, or the run is gone."""
        telling = asyncio.create_task(self._tell())
        try:
            while all(self._take(message) for message in await self._pipe.receive()):
                pass
        except EOFError:
            pass
        finally:
            for task in (telling, *self._playing.values()):
                task.cancel()
            await asyncio.gather(telling, *self._playing.values(), return_exceptions=True)

    def _take(self, message: Any) -> bool:
        match message:
            case Play(number, order):
                playing = self._playing[number] = asyncio.create_task(self._play(number, order))
                playing.add_done_callback(lambda _: self._playing.pop(number))
            case Cancel(number):
                if number in self._playing:
                    self._playing[number].cancel()
            case Said() | Failed():
                self._speaker.answered(message)
        return not isinstance(message, End)

    async def _play(self, number: int, order: Order) -> None:
        def tell(played: Trajectory) -> None:
            with sendable(f"what was played of {order.task.id}"):
                self._pipe.send(Played(number, played))

        failed = None
        try:
            await self._player.play(order, on_trajectory=tell)
        except Exception as error:  # no session's own failure: the run has to hear of it
            first = first_fault(error) if isinstance(error, BaseExceptionGroup) else error
            failed = Failed.of(first) if isinstance(first, LudusError) else Failed("", traceback.format_exc())
        self._pipe.send(Over(number, failed))

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(TELL_S)
            self._pipe.send(Doing(self._player.spent(), self._player.longest()))


async def serve(end: socket.socket) -> None:
    pipe = await Pipe.over(end)
    try:
        (setup,) = await pipe.receive()
        assert isinstance(setup, Setup)
        try:
            await _play_for(setup, pipe)
        except LudusError as error:
            pipe.send(Failed.of(error))
    finally:
        await pipe.close()


async def _play_for(setup: Setup, pipe: Pipe) -> None:
    config = setup.config
    client = await make_client(config, folder=setup.folder, workers=setup.workers)
    try:
        chat = make_chat(config, load_tokenizer(setup.model_folder))
        speaker = FarSpeaker(pipe, sends_words=bool(config.cross_policy.outside))
        arena = Arena(client, speaker, chat, limits_from(config), max_turns=setup.max_turns)
        pipe.send(Ready())
        with rarely_collected():
            await Stagehand(pipe, PlaysHere(arena), speaker).run()
    finally:
        await client.close()


def main() -> None:
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    end = socket.socket(fileno=int(sys.argv[1]))
    end.set_inheritable(False)  # what an environment starts has no business with it
    with suppress(EOFError):
        asyncio.run(serve(end))


if __name__ == "__main__":
    main()
