"""Sessions in processes of their own: environments, chat and play are there, engine, trainer and loop are here. Promise: what is played is
what would be played here; a process that dies ends the run by name, and none outlives it.

    here: order ──▶ play a group ──▶ its trajectories, one by one      there: launch/placement/process_main.py
          speak ◀── a conversation, what is said ──▶

In one process they share the interpreter's lock, and a few hundred sessions keep a GPU waiting. Everything is told by messages, those of
one turn of the event loop together.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import socket
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from ludus import errors
from ludus.config import RunConfig
from ludus.environments.registry import search_path
from ludus.errors import EnvironmentFailed, LudusError, WorkerLost, describe
from ludus.launch.placement.pipe import Pipe
from ludus.processes.supervisor import Supervisor, how_ended
from ludus.rollout.group import OnTrajectory, Order, assembled
from ludus.rollout.speaker import Speaker, Words
from ludus.types import Completion, Group, Sampling, Trajectory

STOP_S = 20.0
"""From the word to end until it is killed: sandboxes take their time to close."""
LAST_WORDS_S = 1.0
"""For what a process that is gone has still sent."""
NOBODY: Any = None
"""In place of a session, which is elsewhere: who speaks in training does without it."""

# ------------------------------------------------------------------------------------------------ messages


@dataclass(frozen=True, slots=True)
class Setup:
    """All that a process has to know of the run."""

    config: RunConfig
    folder: Path
    model_folder: str
    """Whose tokenizer it is."""
    max_turns: Mapping[str, int]
    workers: tuple[str, str] | None
    """URL and token of the controller that the run has started."""


class Ready(NamedTuple):
    pass


class Failed(NamedTuple):
    """It could not begin, or, with a number, what was asked for cannot be said. A `kind` of ours, or a fault of our own code."""

    kind: str
    text: str
    number: int = -1

    @classmethod
    def of(cls, error: LudusError, *, number: int = -1) -> Failed:
        return cls(type(error).__name__, str(error), number)

    def error(self) -> Exception:
        kind = getattr(errors, self.kind, LudusError) if self.kind else RuntimeError
        error: Exception = kind(self.text)
        return error


class Play(NamedTuple):
    """Numbered, because a group may be cancelled and then played again."""

    number: int
    order: Order


class Cancel(NamedTuple):
    number: int


class Played(NamedTuple):
    number: int
    trajectory: Trajectory


class Over(NamedTuple):
    """All of the group was played; unless something ended it that is no session's own failure."""

    number: int
    failed: Failed | None = None


class Speak(NamedTuple):
    number: int
    ids: bytes
    sampling: Sampling
    session_id: str
    words: Words


class Said(NamedTuple):
    number: int
    completion: Completion


class Hush(NamedTuple):
    """Nobody waits for this answer any more."""

    number: int


class Release(NamedTuple):
    session_id: str


class Doing(NamedTuple):
    """What its sessions have spent their time on, and which have waited longest."""

    spent: Mapping[str, float]
    longest: list[str]


class End(NamedTuple):
    pass


@contextmanager
def sendable(what: str) -> Iterator[None]:
    """Names what cannot be pickled."""
    try:
        yield
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise EnvironmentFailed(
            f"{what} cannot be sent between the run and the process that plays its sessions: {describe(error)}. Make it plain data, or "
            "play them in the run's own process (pipeline.session_processes = 0)"
        ) from error


# ------------------------------------------------------------------------------------------------ this side


@dataclass(slots=True)
class _Playing:
    on_trajectory: OnTrajectory
    over: asyncio.Future[None]
    played: list[Trajectory] = field(default_factory=list)


class SessionsApart:
    """A GroupPlayer with processes; each group is played whole by one of them."""

    def __init__(self, processes: Iterable[_Process], *, keeper: Supervisor) -> None:
        self._processes, self._keeper = list(processes), keeper

    @classmethod
    async def start(cls, setup: Setup, *, num: int) -> Self:
        """They begin while the run goes on, which may have a model to load."""
        keeper = Supervisor()
        return cls([await _Process.start(setup, keeper=keeper) for _ in range(num)], keeper=keeper)

    async def ready(self, speaker: Speaker) -> None:
        """All have begun. `speaker`: who speaks in their sessions, from here."""
        for process in self._processes:
            process.speaker = speaker
        await asyncio.gather(*(asyncio.shield(process.ready) for process in self._processes))

    def spent(self) -> dict[str, float]:
        total: Counter[str] = Counter()
        for process in self._processes:
            total.update(process.doing.spent)
        return dict(total)

    def longest(self) -> list[str]:
        return [text for process in self._processes for text in process.doing.longest]

    async def play(self, order: Order, *, on_trajectory: OnTrajectory) -> Group:
        process = min(self._processes, key=lambda each: len(each.playing))
        return await process.play(order, on_trajectory=on_trajectory)

    async def close(self) -> None:
        await asyncio.gather(*(process.stop() for process in self._processes))
        self._keeper.close()


class _Process:
    def __init__(self, process: asyncio.subprocess.Process, pipe: Pipe, *, keeper: Supervisor) -> None:
        self._process, self._pipe, self._keeper = process, pipe, keeper
        keeper.add(process.pid)
        self.speaker: Speaker | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # heard, though the run may have ended before it asks
        self.ready.add_done_callback(lambda ready: ready.exception())
        self.playing: dict[int, _Playing] = {}
        self._numbers = itertools.count()
        self.doing = Doing({}, [])
        self._speaking: dict[int, asyncio.Task[Completion]] = {}
        self._releasing: set[asyncio.Future[None]] = set()
        self._fault: BaseException | None = None
        self._reading = asyncio.create_task(self._read())
        self._watching = asyncio.create_task(self._watch())

    @classmethod
    async def start(cls, setup: Setup, *, keeper: Supervisor) -> Self:
        ours, theirs = socket.socketpair()
        pipe = await Pipe.over(ours)
        with theirs:
            with sendable("the run file"):
                pipe.send(setup)
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "ludus.launch.placement.process_main", str(theirs.fileno()), pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": search_path()},
                start_new_session=True,  # a Ctrl-C is for the run, which finishes its step with these still here
            )  # fmt: skip
        return cls(process, pipe, keeper=keeper)

    async def play(self, order: Order, *, on_trajectory: OnTrajectory) -> Group:
        if self._fault is not None:
            raise self._fault
        number, playing = next(self._numbers), _Playing(on_trajectory, asyncio.get_running_loop().create_future())
        self.playing[number] = playing
        try:
            with sendable(f"task {order.task.id}"):
                self._pipe.send(Play(number, order))
            await playing.over
        except asyncio.CancelledError:
            self._pipe.send(Cancel(number))
            raise
        finally:
            del self.playing[number]
        return assembled(order, playing.played)

    async def stop(self) -> None:
        self._pipe.send(End())
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S if self.ready.done() else 0):  # else it has nothing to close yet
                await self._process.wait()
        self._keeper.kill(self._process.pid)  # it, or what it has started and left
        self._watching.cancel()
        self._reading.cancel()
        self._break(WorkerLost(f"process {self._process.pid}, which plays sessions of this run, was closed"))
        left: list[asyncio.Future[Any]] = [*self._speaking.values(), *self._releasing]
        for task in left:
            task.cancel()
        self._pipe.abort()
        await self._process.wait()

    async def _watch(self) -> None:
        """Not by the end of its messages: what an environment has forked holds the other end open too."""
        code = await self._process.wait()
        self._keeper.kill(self._process.pid)  # what it has started
        await asyncio.wait([self._reading], timeout=LAST_WORDS_S)
        self._break(
            WorkerLost(
                f"process {self._process.pid}, which plays sessions of this run, {how_ended(code)}; {len(self.playing)} groups were being "
                "played. What it said last is above. The run goes on from its last checkpoint with --resume; with "
                "pipeline.session_processes = 0 sessions are played in the run's own process, with environments.NAME.at = 'workers' in "
                "others that may die"
            )
        )

    async def _read(self) -> None:
        try:
            while True:
                for message in await self._pipe.receive():
                    self._take(message)
        except EOFError:
            return  # `_watch` says why
        except Exception as error:
            self._break(error)  # a message that cannot be read, a recorder that cannot record: not to be lost in a task

    def _take(self, message: Any) -> None:
        match message:
            case Speak():
                self._speak(message)
            case Release(session_id):
                assert self.speaker is not None, "nothing is played before somebody can speak"
                releasing = asyncio.ensure_future(self.speaker.release(session_id))
                self._releasing.add(releasing)
                releasing.add_done_callback(self._releasing.discard)
            case Hush(number):
                if (speaking := self._speaking.get(number)) is not None:
                    speaking.cancel()
            case Played(number, trajectory):
                if (playing := self.playing.get(number)) is not None:  # else it was cancelled meanwhile
                    playing.played.append(trajectory)
                    playing.on_trajectory(trajectory)
            case Over(number, failed):
                if (playing := self.playing.get(number)) is not None and not playing.over.done():
                    playing.over.set_exception(failed.error()) if failed else playing.over.set_result(None)
            case Doing():
                self.doing = message
            case Ready():
                self.ready.set_result(None)
            case Failed():
                self._break(message.error())

    def _speak(self, asked: Speak) -> None:
        ids = array("I")
        ids.frombytes(asked.ids)
        assert self.speaker is not None, "nothing is played before somebody can speak"
        said = self.speaker.speak(
            ids, sampling=asked.sampling, session_id=asked.session_id, session=NOBODY, words=asked.words
        )
        speaking = asyncio.ensure_future(said)
        self._speaking[asked.number] = speaking
        speaking.add_done_callback(partial(self._answer, asked.number))

    def _answer(self, number: int, speaking: asyncio.Task[Completion]) -> None:
        del self._speaking[number]
        if speaking.cancelled():
            return
        error = speaking.exception()
        if error is None:
            self._pipe.send(Said(number, speaking.result()))
        elif isinstance(error, LudusError):
            self._pipe.send(Failed.of(error, number=number))
        else:
            self._break(error)

    def _break(self, fault: BaseException) -> None:
        """Nothing more comes of this process: whoever waits for it hears why."""
        self._fault = self._fault or fault
        for waiting in (self.ready, *(playing.over for playing in self.playing.values())):
            if not waiting.done():
                waiting.set_exception(fault)
