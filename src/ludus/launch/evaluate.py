"""Held-out tasks of a run, played and recorded: during training, and by `ludus eval`.

Promise of `ludus eval`: no finished attempt is played again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ludus.config import RunConfig
from ludus.errors import ConfigError
from ludus.evaluation.evaluate import evaluate, to_report
from ludus.evaluation.page import write_evaluation
from ludus.launch.context import RunContext, preparing
from ludus.launch.subject import finished, playing
from ludus.rollout.player import Player
from ludus.store.recorder import Listener, Recorder
from ludus.types import CURRENT, Task, Trajectory


async def evaluate_policy(
    context: RunContext,
    player: Player,
    *,
    recorder: Recorder,
    version: int,
    policy: str = CURRENT,
    known: Iterable[Trajectory] = (),
) -> dict[str, Any]:
    """Play the held-out tasks with `policy`, except the attempts in `known`; return the report."""
    settings = context.config.evaluation

    def record(trajectory: Trajectory) -> None:
        recorder.trajectory(trajectory, step=version, group_id=trajectory.task.id, split=settings.split)

    trajectories = await evaluate(
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
    return to_report(trajectories, version=version)


async def held_out(context: RunContext) -> list[Task]:
    """The tasks of `evaluation.split`. Called at the start too, where an empty split is refused."""
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
        report = await evaluate_policy(context, subject.player, recorder=recorder, version=0, known=known.values())
        if len(known) < num or not folder.evaluations():
            recorder.evaluation(0, report)
    settings = config.evaluation.model_dump(include={"split", "attempts", "num_tasks", "temperature"})
    player = {"model": subject.name, "endpoint": config.engine.url, "words": subject.words}
    write_evaluation(folder, report, about={**player, **settings, "seed": config.seed})
    return report
