"""Held-out tasks of a run, played and recorded: during training, and by `ludus eval`.

Promise of `ludus eval`: no finished attempt is played again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ludus.config import RunConfig
from ludus.errors import ConfigError
from ludus.evaluation.evaluate import evaluate, to_report
from ludus.evaluation.page import write_evaluation
from ludus.launch.context import RunContext, preparing
from ludus.launch.subject import LossWatch, Subject, finished, playing
from ludus.rollout.player import Player
from ludus.store.recorder import Listener, Recorder
from ludus.types import CURRENT, Task, Trajectory


async def evaluate_policy(
    context: RunContext, player: Player, *, recorder: Recorder, version: int, policy: str
) -> dict[str, Any]:
    """Play the held-out tasks with `policy`; record and return the report."""
    trajectories = await _play(context, player, recorder=recorder, version=version, policy=policy)
    report = to_report(trajectories, version=version)
    recorder.evaluation(version, report)
    return report


async def held_out(context: RunContext) -> list[Task]:
    """The tasks of `evaluation.split`. Also called at the start, where an empty split is refused."""
    settings = context.config.evaluation
    tasks = await context.tasks(settings.split)
    for name, listed in tasks.items():
        if not listed:
            raise ConfigError(
                f"environment {name!r} has no tasks in split {settings.split!r}; evaluation.split names another split"
            )
    return [task for listed in tasks.values() for task in listed[: settings.num_tasks]]


async def evaluate_model(config: RunConfig, *, listeners: Iterable[Listener] = ()) -> dict[str, Any]:
    """`ludus eval`: the run file's model on held-out tasks, in a run folder of its own."""
    split, attempts = config.evaluation.split, config.evaluation.attempts
    async with playing(config, "evaluating", split=split, listeners=listeners) as (recorder, subject):
        folder, context = recorder.folder, subject.context
        with preparing(folder):
            tasks = await held_out(context)
        num, keys = len(tasks) * attempts, {(task.id, attempt) for task in tasks for attempt in range(attempts)}
        known = {key: each for each in finished(folder) if (key := (each.task.id, each.attempt)) in keys}
        recorder.event("evaluating", total=num, finished=len(known), split=split)
        trajectories = await _play(
            context, subject.player, recorder=recorder, version=0, known=known.values(), watch=LossWatch()
        )
        report = to_report(trajectories, version=0)
        if len(known) < num or not folder.evaluations():
            recorder.evaluation(0, report)
    write_evaluation(folder, report, about=_about(config, subject))
    return report


async def _play(
    context: RunContext,
    player: Player,
    *,
    recorder: Recorder,
    version: int,
    policy: str = CURRENT,
    known: Iterable[Trajectory] = (),
    watch: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    settings = context.config.evaluation

    def record(trajectory: Trajectory) -> None:
        recorder.trajectory(trajectory, step=version, group_id=trajectory.task.id, split=settings.split)
        if watch is not None:
            watch(trajectory)

    return await evaluate(
        await held_out(context),
        player=player,
        attempts=settings.attempts,
        seed=context.config.seed,
        prefix=f"eval-{version}",
        policy=policy,
        temperature=settings.temperature,
        on_trajectory=record,
        finished=known,
    )


def _about(config: RunConfig, subject: Subject) -> dict[str, Any]:
    settings = config.evaluation
    return {
        "model": subject.name,
        "endpoint": config.engine.url,
        "words": subject.words,
        "split": settings.split,
        "attempts": settings.attempts,
        "num_tasks": settings.num_tasks,
        "temperature": settings.temperature,
        "seed": config.seed,
    }
