"""Held-out tasks of a run, played and recorded: during training, and by `ludus eval`.

Promise of `ludus eval`: after any interruption the same command resumes, and no finished attempt is
played again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any

from ludus.config import RunConfig
from ludus.errors import ConfigError
from ludus.evaluation.evaluate import evaluate, to_report
from ludus.evaluation.page import write_evaluation
from ludus.launch.context import RunContext, preparing
from ludus.launch.subject import LossWatch, Subject, make_subject
from ludus.rollout.player import Player
from ludus.store.recorder import Listener, Recorder
from ludus.store.run_folder import RunFolder
from ludus.types import CURRENT, Task, Trajectory

EVALUATING = "evaluating"
"""The event that marks a run folder as an evaluation's."""
MAY_DIFFER = (
    ("engine", "url"), ("engine", "max_running"), ("engine", "threads"), ("evaluation", "num_tasks"), ("evaluation", "attempts"),
    ("workers",), ("controller",), ("store",),
)  # fmt: skip
"""Keys that change nothing about a finished attempt: where it is played, and how many there are."""


async def evaluate_policy(
    context: RunContext, player: Player, *, recorder: Recorder, version: int, policy: str
) -> dict[str, Any]:
    """Play the held-out tasks with `policy`; record and return the report."""
    trajectories = await _play(context, player, recorder=recorder, version=version, policy=policy)
    report = to_report(trajectories, version=version)
    recorder.evaluation(version, report)
    return report


async def held_out(context: RunContext) -> list[Task]:
    """The tasks of `evaluation.split`. Also called at the start, so that an empty split is refused there."""
    settings = context.config.evaluation
    tasks = await context.tasks(settings.split)
    for name, listed in tasks.items():
        if not listed:
            raise ConfigError(
                f"environment {name!r} has no tasks in split {settings.split!r}; evaluation.split names another split"
            )
    return [task for listed in tasks.values() for task in listed[: settings.num_tasks]]


async def evaluate_model(config: RunConfig, *, listeners: Iterable[Listener] = ()) -> dict[str, Any]:
    """`ludus eval`: the run file's model on held-out tasks, in a run folder of its own; resumes an earlier call."""
    folder = _open(config)
    split = config.evaluation.split
    with Recorder(folder, trajectories=config.store.trajectories, listeners=listeners) as recorder:
        async with AsyncExitStack() as closing:
            with preparing(folder):
                subject = await make_subject(config, folder=folder.path, split=split, closing=closing)
                tasks = await held_out(subject.context)
            finished = _finished(folder, tasks, attempts=config.evaluation.attempts)
            num_attempts = len(tasks) * config.evaluation.attempts
            recorder.event(EVALUATING, total=num_attempts, finished=len(finished), split=split)
            trajectories = await _play(
                subject.context, subject.player, recorder=recorder, version=0, finished=finished, watch=LossWatch()
            )
        report = to_report(trajectories, version=0)
        if len(finished) < num_attempts or not folder.evaluations():
            recorder.evaluation(0, report)
        recorder.event("finished", version=0)
    write_evaluation(folder, report, about=_about(config, subject))
    return report


async def _play(
    context: RunContext,
    player: Player,
    *,
    recorder: Recorder,
    version: int,
    policy: str = CURRENT,
    finished: Iterable[Trajectory] = (),
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
        finished=finished,
    )


def _about(config: RunConfig, subject: Subject) -> dict[str, Any]:
    settings = config.evaluation
    return {
        "model": subject.name,
        "endpoint": config.engine.url,
        "words": "tokens" if subject.in_tokens else "text",
        "split": settings.split,
        "attempts": settings.attempts,
        "num_tasks": settings.num_tasks,
        "temperature": settings.temperature,
        "seed": config.seed,
    }


# ------------------------------------------------------------------------------------------------ resuming


def _open(config: RunConfig) -> RunFolder:
    """A new run folder, or that of the same evaluation, to resume it."""
    if not RunFolder(config.folder).config_file.exists():
        return RunFolder.create(config)
    begun = RunFolder.open(config.folder)
    if not any(event.get("kind") == EVALUATING for event in begun.events()):
        return RunFolder.create(config)  # refuses: another kind of run is there
    if differing := differences(begun.config(), config):
        raise ConfigError(
            f"{begun.path} holds another evaluation: {', '.join(differing)}. Give this one another name (--name), "
            f"or delete that one: rm -r {begun.path}"
        )
    return RunFolder.resume(config, step=0)


def differences(before: RunConfig, after: RunConfig) -> list[str]:
    """Settings that change an attempt: "evaluation.split is 'test' there and 'dev' here"."""
    one, other = _leaves(before.model_dump(mode="json")), _leaves(after.model_dump(mode="json"))
    keys = [key for key in one.keys() | other.keys() if one.get(key) != other.get(key)]
    return [
        f"{'.'.join(key)} is {one.get(key)!r} there and {other.get(key)!r} here"
        for key in sorted(keys)
        if not any(key[: len(free)] == free for free in MAY_DIFFER)
    ]


def _leaves(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if not isinstance(value, dict) or not value:
        return {path: value}
    return {key: leaf for name, item in value.items() for key, leaf in _leaves(item, (*path, name)).items()}


def _finished(folder: RunFolder, tasks: list[Task], *, attempts: int) -> list[Trajectory]:
    """Scored attempts of the earlier call; unscored ones are played again."""
    if folder.resumed_at is None:
        return []
    wanted = {task.id for task in tasks}
    stored = (each.trajectory for each in folder.read_trajectories(report=lambda _: None))
    found = [each for each in stored if each.stop.scored and each.task.id in wanted and each.attempt < attempts]
    return list({(each.task.id, each.attempt): each for each in found}.values())
