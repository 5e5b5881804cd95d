"""`ludus collect`: trajectories of solvers, or of any model, as data for warm starts.

Promise: each trajectory is on disk when it is finished, and the same command resumes after an interruption.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from ludus.config import RunConfig
from ludus.errors import ConfigError
from ludus.launch.context import preparing
from ludus.launch.evaluate import differences
from ludus.launch.subject import LossWatch, make_solver, make_subject
from ludus.rollout.player import play_all
from ludus.store.recorder import Listener, Recorder
from ludus.store.run_folder import RunFolder
from ludus.types import Order, Task, Trajectory

COLLECTING = "collecting"
"""The event that marks a run folder as a collection's."""


async def collect(
    config: RunConfig, *, solver: bool, split: str = "train", listeners: Iterable[Listener] = ()
) -> dict[str, Any]:
    """Play `sft.num_trajectories` sessions, by solvers or by the run file's model, into a run folder."""
    folder = _open(config, solver=solver, split=split)
    with Recorder(folder, trajectories=True, listeners=listeners) as recorder:
        async with AsyncExitStack() as closing:
            with preparing(folder):
                make = make_solver if solver else make_subject
                subject = await make(config, folder=folder.path, split=split, closing=closing)
            orders = plan_orders(
                await subject.context.tasks(split),
                config=config,
                num=config.sft.num_trajectories,
                prefix="solver" if solver else "model",
            )
            before = _finished(folder)
            left = [order for order in orders if order.id not in before]
            recorder.event(COLLECTING, total=len(orders), finished=len(orders) - len(left), solver=solver, split=split)
            watch = LossWatch()

            def record(trajectory: Trajectory) -> None:
                recorder.trajectory(trajectory, step=0, group_id=trajectory.id, split=split)
                watch(trajectory)

            played = await play_all(left, player=subject.player, on_trajectory=record)
        recorder.event("finished", version=0)
    return _summary(config, [*before.values(), *played], player=subject.name, in_tokens=subject.in_tokens)


def plan_orders(
    tasks: Mapping[str, Sequence[Task]], *, config: RunConfig, num: int, prefix: str, number: int = 0
) -> list[Order]:
    """`num` single sessions, divided between the environments by weight, at least one each, in the order of the tasks.

    `number` n gives the n-th plan, which continues where the one before it ended."""
    total = sum(section.weight for section in config.environments.values())
    orders = []
    for name, listed in tasks.items():
        count = max(1, round(num * config.environments[name].weight / total))
        for index in range(number * count, (number + 1) * count):
            seed = (config.seed, prefix, name, index)
            orders.append(Order(f"{prefix}-{name}-{index}", listed[index % len(listed)], seed=seed))
    return orders


def _open(config: RunConfig, *, solver: bool, split: str) -> RunFolder:
    if not RunFolder(config.folder).config_file.exists():
        return RunFolder.create(config)
    begun = RunFolder.open(config.folder)
    first = next((event for event in begun.events() if event.get("kind") == COLLECTING), None)
    if first is None:
        return RunFolder.create(config)  # refuses: another kind of run is there
    differing = [] if (first.get("solver"), first.get("split")) == (solver, split) else ["the player or the split"]
    differing += [each for each in differences(begun.config(), config) if not each.startswith("sft.num_trajectories ")]
    if differing:
        raise ConfigError(
            f"{begun.path} holds another collection: {', '.join(differing)}. Give this one another name (--name), "
            f"or delete that one: rm -r {begun.path}"
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
