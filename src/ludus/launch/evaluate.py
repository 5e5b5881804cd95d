"""Held-out tasks of a run, played by a policy and recorded. Used during training and by `ludus eval`.

Promise of `ludus eval`: whatever ended it, the same command goes on where it stopped, and no finished attempt is played again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any

from ludus.config import RunConfig
from ludus.errors import ConfigError
from ludus.evaluation.evaluate import evaluate, to_report
from ludus.evaluation.page import write_evaluation
from ludus.launch.context import Stage, beginning
from ludus.launch.player import Player, Watch, make_player
from ludus.rollout.arena import Arena
from ludus.store.recorder import Listener, Recorder
from ludus.store.run_folder import RunFolder
from ludus.types import Task, Trajectory

EVALUATING = "evaluating"
"""The event that makes a run folder an evaluation's."""
MAY_DIFFER = (
    ("engine", "url"), ("engine", "max_running"), ("engine", "threads"), ("evaluation", "num_tasks"), ("evaluation", "attempts"),
    ("workers",), ("controller",), ("store",),
)  # fmt: skip
"""Keys of a run that change nothing about an attempt that is finished: where it is played, and how many more there are."""


async def evaluate_policy(stage: Stage, arena: Arena, *, recorder: Recorder, version: int) -> dict[str, Any]:
    """The report on `evaluation.num_tasks` held-out tasks per environment, also recorded."""
    trajectories = await _play(stage, arena, recorder=recorder, version=version)
    report = to_report(trajectories, version=version)
    recorder.evaluation(version, report)
    return report


async def held_out(stage: Stage) -> list[Task]:
    """Also called at the start of a run, so that a split without tasks is refused there and not after the first steps."""
    settings = stage.config.evaluation
    tasks = await stage.tasks(settings.split)
    for name, listed in tasks.items():
        if not listed:
            raise ConfigError(
                f"environment {name!r} has no tasks in split {settings.split!r}; evaluation.split names another split"
            )
    return [task for listed in tasks.values() for task in listed[: settings.num_tasks]]


async def evaluate_model(config: RunConfig, *, listeners: Iterable[Listener] = ()) -> dict[str, Any]:
    """`ludus eval`: the run file's model on held-out tasks, in a run folder of its own; goes on where an earlier call stopped."""
    folder = _open(config)
    split = config.evaluation.split
    with Recorder(folder, trajectories=config.store.trajectories, listeners=listeners) as recorder:
        async with AsyncExitStack() as closing:
            with beginning(folder):
                player = await make_player(
                    config,
                    folder=folder.path,
                    split=split,
                    closing=closing,
                    temperature=config.evaluation.temperature,
                )
                tasks = await held_out(player.stage)
            finished = _finished(folder, tasks, attempts=config.evaluation.attempts)
            num_attempts = len(tasks) * config.evaluation.attempts
            recorder.event(EVALUATING, total=num_attempts, finished=len(finished), split=split)
            trajectories = await _play(
                player.stage, player.arena, recorder=recorder, version=0, finished=finished, watch=Watch()
            )
        report = to_report(trajectories, version=0)
        if len(finished) < num_attempts or not folder.evaluations():
            recorder.evaluation(0, report)
        recorder.event("finished", version=0)
    write_evaluation(folder, report, about=_about(config, player))
    return report


async def _play(
    stage: Stage,
    arena: Arena,
    *,
    recorder: Recorder,
    version: int,
    finished: Iterable[Trajectory] = (),
    watch: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    settings, tasks = stage.config.evaluation, await held_out(stage)

    def record(trajectory: Trajectory) -> None:
        recorder.trajectory(trajectory, step=version, group_id=trajectory.task.id, split=settings.split)
        if watch is not None:
            watch(trajectory)

    return await evaluate(
        tasks,
        arena=arena,
        attempts=settings.attempts,
        seed=stage.config.seed,
        prefix=f"eval-{version}",
        on_trajectory=record,
        finished=finished,
    )


def _about(config: RunConfig, player: Player) -> dict[str, Any]:
    settings = config.evaluation
    return {
        "model": player.name,
        "endpoint": config.engine.url,
        "words": "tokens" if player.in_tokens else "text",
        "split": settings.split,
        "attempts": settings.attempts,
        "num_tasks": settings.num_tasks,
        "temperature": settings.temperature,
        "seed": config.seed,
    }


# ------------------------------------------------------------------------------------------------ going on


def _open(config: RunConfig) -> RunFolder:
    """A new run folder, or the one in which the same evaluation was begun."""
    if not RunFolder(config.folder).config_file.exists():
        return RunFolder.create(config)
    begun = RunFolder.open(config.folder)
    if not any(event.get("kind") == EVALUATING for event in begun.events()):
        return RunFolder.create(config)  # refuses: another kind of run is there
    if differing := differences(begun.config(), config):
        raise ConfigError(
            f"{begun.path} holds another evaluation: {', '.join(differing)}. Give this one another name (--name), or delete that one: "
            f"rm -r {begun.path}"
        )
    return RunFolder.resume(config, step=0)


def differences(before: RunConfig, after: RunConfig) -> list[str]:
    """What makes attempts of one run no attempts of the other: "evaluation.split is 'test' there and 'dev' here"."""
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
    """Scored attempts at these tasks from before; those that the world ended are played again."""
    if folder.resumed_at is None:
        return []
    wanted = {task.id for task in tasks}
    stored = (each.trajectory for each in folder.read_trajectories(report=lambda _: None))
    found = [each for each in stored if each.stop.scored and each.task.id in wanted and each.attempt < attempts]
    return list({(each.task.id, each.attempt): each for each in found}.values())
