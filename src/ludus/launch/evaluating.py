"""Held-out tasks of a run, played by a policy and recorded. Used during training and by `ludus eval`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ludus.config import RunConfig
from ludus.engines.engine import Engine
from ludus.engines.server import ServerEngine
from ludus.errors import ConfigError
from ludus.evaluation.evaluate import evaluate, to_report
from ludus.launch.parts import Parts, beginning, make_arena, make_embedded_engine, make_parts
from ludus.rollout.arena import Arena
from ludus.rollout.speaker import PolicySpeaker
from ludus.store.recorder import Listener, Recorder
from ludus.store.run_folder import RunFolder
from ludus.types import Task, Trajectory
from ludus.weights.memory import MemoryChannel


async def evaluate_policy(parts: Parts, arena: Arena, *, recorder: Recorder, version: int) -> dict[str, Any]:
    """The report on `evaluation.num_tasks` held-out tasks per environment, also recorded."""
    settings, tasks = parts.config.evaluation, await held_out(parts)

    def record(trajectory: Trajectory) -> None:
        recorder.trajectory(trajectory, step=version, group_id=trajectory.task.id, split=settings.split)

    results = await evaluate(
        tasks,
        arena=arena,
        attempts=settings.attempts,
        seed=parts.config.seed,
        prefix=f"eval-{version}",
        on_trajectory=record,
    )
    report = to_report(results, version=version)
    recorder.evaluation(version, report)
    return report


async def held_out(parts: Parts) -> list[Task]:
    """Also called at the start of a run, so that a split without tasks is refused there and not after the first steps."""
    settings = parts.config.evaluation
    tasks = await parts.tasks(settings.split)
    for name, listed in tasks.items():
        if not listed:
            raise ConfigError(
                f"environment {name!r} has no tasks in split {settings.split!r}; evaluation.split names another split"
            )
    return [task for listed in tasks.values() for task in listed[: settings.num_tasks]]


async def evaluate_model(config: RunConfig, *, listeners: Iterable[Listener] = ()) -> dict[str, Any]:
    """`ludus eval`: the run file's model on held-out tasks, in a run folder of its own."""
    folder = RunFolder.create(config)
    with Recorder(folder, tensorboard=False, trajectories=config.store.trajectories, listeners=listeners) as recorder:
        with beginning(folder):
            parts = await make_parts(config, folder=folder.path)
            await held_out(parts)
            engine = _engine(parts)
        try:
            arena = make_arena(parts, PolicySpeaker(engine), temperature=config.evaluation.temperature)
            return await evaluate_policy(parts, arena, recorder=recorder, version=0)
        finally:
            await engine.close()
            await parts.client.close()


def _engine(parts: Parts) -> Engine:
    engine = parts.config.engine
    if engine.kind == "server":
        return ServerEngine(
            engine.url, max_running=engine.max_running
        )  # model.name is our tokenizer; servers name models as they like
    return make_embedded_engine(parts, channel=MemoryChannel())
