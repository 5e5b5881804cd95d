"""`ludus collect`: trajectories of solvers, or of any model, as data for warm starts. Promise: each is on disk when it is finished, and
the same command goes on where it stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from ludus.config import RunConfig
from ludus.errors import ConfigError, first_fault
from ludus.launch.context import beginning
from ludus.launch.evaluate import differences
from ludus.launch.player import Watch, make_player, make_solver
from ludus.rollout.arena import Arena
from ludus.rollout.play import Attempt, play
from ludus.seeds import derive
from ludus.store.recorder import Listener, Recorder
from ludus.store.run_folder import RunFolder
from ludus.types import Task, Trajectory

MAX_CONCURRENT = 64
COLLECTING = "collecting"
"""The event that makes a run folder a collection's."""


async def collect(
    config: RunConfig, *, solver: bool, split: str = "train", listeners: Iterable[Listener] = ()
) -> dict[str, Any]:
    """Plays `sft.num_trajectories` sessions, by solvers or by the run file's model, into a run folder that `sft.trajectories` can name."""
    folder = _open(config, solver=solver, split=split)
    with Recorder(folder, trajectories=True, listeners=listeners) as recorder:
        async with AsyncExitStack() as closing:
            with beginning(folder):
                make = make_solver if solver else make_player
                player = await make(config, folder=folder.path, split=split, closing=closing)
            attempts = plan_attempts(
                await player.stage.tasks(split),
                config=config,
                num=config.sft.num_trajectories,
                prefix="solver" if solver else "model",
            )
            before = _finished(folder)
            left = [attempt for attempt in attempts if attempt.session_id not in before]
            recorder.event(
                COLLECTING, total=len(attempts), finished=len(attempts) - len(left), solver=solver, split=split
            )
            watch = Watch()

            def record(trajectory: Trajectory) -> None:
                recorder.trajectory(trajectory, step=0, group_id=trajectory.id, split=split)
                watch(trajectory)

            played = await play_all(left, arena=player.arena, on_trajectory=record)
        recorder.event("finished", version=0)
    return _summary(config, [*before.values(), *played], player=player.name, in_tokens=player.in_tokens)


def plan_attempts(
    tasks: Mapping[str, Sequence[Task]], *, config: RunConfig, num: int, prefix: str, number: int = 0
) -> list[Attempt]:
    """`num` sessions, divided between the environments by weight, one each at least; each goes round its tasks. With `number` n it is the
    n-th such plan, which goes on where the one before it ended."""
    total = sum(section.weight for section in config.environments.values())
    attempts = []
    for name, listed in tasks.items():
        count = max(1, round(num * config.environments[name].weight / total))
        for index in range(number * count, (number + 1) * count):
            seed = derive(config.seed, prefix, name, index)
            attempts.append(Attempt(f"{prefix}-{name}-{index}", listed[index % len(listed)], seed=seed))
    return attempts


async def play_all(
    attempts: Sequence[Attempt], *, arena: Arena, on_trajectory: Callable[[Trajectory], None] | None = None
) -> list[Trajectory]:
    room = asyncio.Semaphore(MAX_CONCURRENT)

    async def one(attempt: Attempt) -> Trajectory:
        async with room:
            trajectory = await play(attempt, arena=arena)
        if on_trajectory is not None:
            on_trajectory(trajectory)
        return trajectory

    try:
        async with asyncio.TaskGroup() as playing:
            running = [playing.create_task(one(attempt)) for attempt in attempts]
    except BaseExceptionGroup as faults:
        raise first_fault(faults) from faults
    return [task.result() for task in running]


def _open(config: RunConfig, *, solver: bool, split: str) -> RunFolder:
    if not RunFolder(config.folder).config_file.exists():
        return RunFolder.create(config)
    begun = RunFolder.open(config.folder)
    first = next((event for event in begun.events() if event.get("kind") == COLLECTING), None)
    if first is None:
        return RunFolder.create(config)  # refuses: another kind of run is there
    differing = [] if (first.get("solver"), first.get("split")) == (solver, split) else ["who plays, or the split"]
    differing += [each for each in differences(begun.config(), config) if not each.startswith("sft.num_trajectories ")]
    if differing:
        raise ConfigError(
            f"{begun.path} holds another collection: {', '.join(differing)}. Give this one another name (--name), or delete that one: "
            f"rm -r {begun.path}"
        )
    return RunFolder.resume(config, step=0)


def _finished(folder: RunFolder) -> dict[str, Trajectory]:
    if folder.resumed_at is None:
        return {}
    stored = (each.trajectory for each in folder.read_trajectories(report=lambda _: None))
    return {each.id: each for each in stored if each.stop.scored}


def _summary(config: RunConfig, trajectories: Sequence[Trajectory], *, player: str, in_tokens: bool) -> dict[str, Any]:
    scored = [each for each in trajectories if each.stop.scored]
    causes = [each.failure for each in trajectories if each.failure]
    return {
        "folder": str(config.folder),
        "player": player,
        "words": "tokens" if in_tokens else "text",
        "trajectories": len(scored),
        "unscored": len(trajectories) - len(scored),
        "success": sum(each.success for each in scored) / len(scored) if scored else None,
        "failure": causes[-1] if causes else "",
    }
