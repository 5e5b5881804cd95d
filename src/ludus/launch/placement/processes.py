"""Sessions in rollout processes. Environments, chat and play are there; the other roles are here.

Promise: the trajectories are those that this process would play. A process that ends early ends the
run with its name and the cause, and none outlives the run.

    here: play(order) ──▶ a group, trajectory by trajectory        there: process_main.py
          generate    ◀── a turn's prompt

In one process they share the interpreter's lock, and a few hundred sessions keep a GPU waiting.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import Counter
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from ludus.config import RunConfig
from ludus.engines.engine import Engine
from ludus.engines.linked import Generate, engine_handlers
from ludus.environments.registry import search_path
from ludus.errors import EnvironmentFailed, LudusError, WorkerLost, describe
from ludus.launch.context import ModelContext
from ludus.launch.environments import address_of_workers
from ludus.launch.placement.here import Here
from ludus.processes.supervisor import Process, Supervisor, how_ended
from ludus.rollout.player import OnTrajectory, Player, PlayerStats, assembled, ignore
from ludus.types import Completion, Group, Order, Trajectory
from ludus.wire.codec import Record
from ludus.wire.connection import Handler

STOP_S = 20.0
"""From the request to end until a process is killed: sandboxes take their time to close."""
T = TypeVar("T")


class Setup(Record, frozen=True):
    """What a rollout process must know of the run."""

    config: dict[str, Any]
    folder: str
    model_folder: str
    """The folder of the tokenizer."""
    max_turns: dict[str, int] = {}
    workers: tuple[str, str] | None = None
    """URL and access token of the controller that the run has started."""

    @classmethod
    def of(cls, config: RunConfig, **fields: Any) -> Setup:
        try:
            return cls(config.model_dump(mode="json", exclude_none=True), **fields)
        except ValueError as error:
            raise EnvironmentFailed(not_plain("the run file", error)) from None


class Play(Record, frozen=True):
    """The number tells a group that was cancelled from the same group played again."""

    number: int
    order: Order


class Played(Record, frozen=True):
    number: int
    trajectory: Trajectory


class Processes(Here):
    """Engine and trainer in this process, the player beside it."""

    def __init__(self, context: ModelContext, *, player: ProcessPlayer) -> None:
        super().__init__(context)
        self._player = player

    @classmethod
    async def start(cls, context: ModelContext, *, folder: Path, num: int) -> Self:
        """Start the processes. They load their environments while the run loads its models."""
        setup = Setup.of(
            context.config,
            folder=str(folder),
            model_folder=context.model_folder,
            max_turns=context.max_turns,
            workers=address_of_workers(context.client),
        )
        return cls(context, player=await ProcessPlayer.start(setup, num=num))

    async def player(self, engine: Engine) -> Player:
        await self._player.ready(engine)
        return self._player

    async def close(self) -> None:
        await self._player.close()
        await super().close()


class ProcessPlayer:
    """Each group is played whole by the process that plays the fewest."""

    def __init__(self, processes: Sequence[RolloutProcess], *, supervisor: Supervisor) -> None:
        self.processes, self._supervisor = processes, supervisor

    @classmethod
    async def start(cls, setup: Setup, *, num: int) -> Self:
        supervisor = Supervisor()
        processes = [await RolloutProcess(supervisor).start(setup) for _ in range(num)]
        return cls(processes, supervisor=supervisor)

    async def ready(self, engine: Engine) -> None:
        """Wait until all processes can play, with the policies of `engine`."""
        for process in self.processes:
            process.engine = engine
        await asyncio.gather(*(process.or_fault(asyncio.shield(process.set_up)) for process in self.processes))

    async def play(self, order: Order, *, on_trajectory: OnTrajectory = ignore) -> Group:
        process = min(self.processes, key=lambda each: len(each.playing))
        return await process.play(order, on_trajectory=on_trajectory)

    def stats(self) -> PlayerStats:
        spent: Counter[str] = Counter()
        for process in self.processes:
            spent.update(process.stats.spent)
        return PlayerStats(dict(spent), tuple(text for process in self.processes for text in process.stats.longest))

    async def ended(self) -> None:
        faults = [process.fault for process in self.processes]
        done, _ = await asyncio.wait(faults, return_when=asyncio.FIRST_COMPLETED)
        done.pop().result()

    async def close(self) -> None:
        await asyncio.gather(*(process.stop() for process in self.processes))
        self._supervisor.close()


class RolloutProcess:
    """One process, as the run sees it."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.engine: Engine | None = None
        self.playing: dict[int, tuple[OnTrajectory, list[Trajectory]]] = {}
        self.stats = PlayerStats({}, ())
        self.fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the exception that ends this process for the run."""
        self.fault.add_done_callback(lambda fault: fault.cancelled() or fault.exception())
        self._numbers = itertools.count()
        handlers = engine_handlers(self._engine)
        self.process = Process(
            supervisor,
            name="a rollout process",
            command=(sys.executable, "-m", "ludus.launch.placement.process_main"),
            environ={"PYTHONPATH": search_path()},
            handlers={
                **handlers,
                "generate": Handler(Generate, lambda request: self._generate(handlers["generate"].function(request))),
                "played": Handler(Played, self._played),
                "stats": Handler(PlayerStats, self._note),
            },
        )

    async def start(self, setup: Setup) -> Self:
        await self.process.start()
        self.set_up = asyncio.create_task(self._call("setup", setup, what="the run file"))
        self.set_up.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._watching = asyncio.create_task(self._watch())
        return self

    async def play(self, order: Order, *, on_trajectory: OnTrajectory) -> Group:
        number, trajectories = next(self._numbers), list[Trajectory]()
        self.playing[number] = (on_trajectory, trajectories)
        try:
            await self.or_fault(self._call("play", Play(number, order), what=f"task {order.task.id}"))
        finally:
            del self.playing[number]
        return assembled(order, trajectories)

    async def stop(self) -> None:
        self._watching.cancel()
        # a process that is not set up has nothing to close yet
        await self.process.stop(grace_s=STOP_S if self.set_up.done() else 0.0)
        self.set_up.cancel()
        self._break(WorkerLost("the rollout process was closed"))

    async def or_fault(self, work: Awaitable[T]) -> T:
        """The result of `work`, or this process's fault where that comes first or is the cause."""
        task = asyncio.ensure_future(work)
        first: list[asyncio.Future[Any]] = [task, self.fault]
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            lost = task.done() and isinstance(task.exception(), WorkerLost)
            if self.fault.done() or lost:
                await self.fault  # says more than "the connection ended"
            return task.result()
        finally:
            task.cancel()

    async def _call(self, name: str, body: Record, *, what: str) -> None:
        assert self.process.connection is not None
        try:
            await self.process.connection.call(name, body, cancel=True)
        except TypeError as error:
            raise EnvironmentFailed(not_plain(what, error)) from error

    async def _watch(self) -> None:
        await self.process.wait()
        self._break(
            WorkerLost(
                f"rollout process {self.process.pid} {how_ended(self.process.returncode or 0)} while it played {len(self.playing)} groups; "
                "its output is above. Continue from the last checkpoint with --resume. With "
                "pipeline.session_processes = 0 sessions are played in the run's own process; with "
                "environments.NAME.at = 'workers' they are played in processes that may die"
            )
        )

    async def _generate(self, generation: Awaitable[Completion]) -> Completion:
        try:
            return await generation
        except Exception as error:
            if not isinstance(error, LudusError):
                self._break(error)  # a bug in this process, not a failure of the session
            raise

    def _played(self, played: Played) -> None:
        if played.number not in self.playing:  # it was cancelled meanwhile
            return
        on_trajectory, trajectories = self.playing[played.number]
        trajectories.append(played.trajectory)
        try:
            on_trajectory(played.trajectory)
        except Exception as error:  # noqa: BLE001
            self._break(error)

    def _note(self, stats: PlayerStats) -> None:
        self.stats = stats

    def _engine(self) -> Engine:
        assert self.engine is not None, "nothing is played before there is an engine"
        return self.engine

    def _break(self, fault: BaseException) -> None:
        if not self.fault.done():
            self.fault.set_exception(fault)


def not_plain(what: str, error: Exception) -> str:
    return (
        f"{what} cannot be sent between the run and its rollout process: {describe(error)}. Make it plain data, or "
        "play sessions in the run's own process (pipeline.session_processes = 0)"
    )
