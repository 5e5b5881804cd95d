"""Held-out tasks to trajectories to a report, without a trainer. Promise: the same tasks and noise for every model that is compared."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ludus.errors import first_fault
from ludus.evaluation.statistics import EnvironmentResult, mean_success, summarise
from ludus.rollout.arena import Arena
from ludus.rollout.play import Attempt, play
from ludus.seeds import derive
from ludus.types import Task, Trajectory

RETRIES = 1
"""An attempt that the world ended is played once more; after that it is reported as unscored, not as a failure of the model."""


async def evaluate(
    tasks: Sequence[Task],
    *,
    arena: Arena,
    attempts: int,
    seed: int,
    max_concurrent: int = 64,
    prefix: str = "eval",
    on_trajectory: Callable[[Trajectory], None] | None = None,
) -> list[EnvironmentResult]:
    """Every task `attempts` times; results per environment, in the order of their names."""
    room = asyncio.Semaphore(max_concurrent)

    async def one(task: Task, index: int) -> Trajectory:
        async with room:
            for retry in range(RETRIES + 1):
                name = f"{prefix}/{task.id}.{index}" + (f"r{retry}" if retry else "")
                noise = derive(seed, "evaluation", task.id, index, retry)
                trajectory = await play(Attempt(name, task, seed=noise, index=index), arena=arena)
                if trajectory.stop.scored:
                    break
        if on_trajectory is not None:
            on_trajectory(trajectory)
        return trajectory

    try:
        async with asyncio.TaskGroup() as playing:
            running = [playing.create_task(one(task, index)) for task in tasks for index in range(attempts)]
    except BaseExceptionGroup as faults:
        raise first_fault(faults) from faults
    return summarise([attempt.result() for attempt in running])


def to_report(results: Sequence[EnvironmentResult], *, version: int) -> dict[str, Any]:
    return {
        "version": version,
        "mean_success": mean_success(results),
        "environments": [result.to_dict() for result in results],
    }
