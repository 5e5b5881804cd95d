"""Held-out tasks to trajectories to a report, without a trainer. Promise: the same tasks and noise for every model that is compared."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ludus.errors import first_fault
from ludus.evaluation.statistics import mean_success, summarise, summarise_categories
from ludus.rollout.arena import Arena
from ludus.rollout.play import Attempt, play
from ludus.seeds import derive
from ludus.types import Task, Trajectory

RETRIES = 1
"""An attempt that the world ended is played once more; after that it is reported as unscored, not as a failure of the model."""

CAUSES = 3
"""Of unscored sessions, told for each environment."""


async def evaluate(
    tasks: Sequence[Task],
    *,
    arena: Arena,
    attempts: int,
    seed: int,
    max_concurrent: int = 64,
    prefix: str = "eval",
    on_trajectory: Callable[[Trajectory], None] | None = None,
    finished: Iterable[Trajectory] = (),
) -> list[Trajectory]:
    """Every task `attempts` times, in order. What is scored in `finished`, by task and attempt, is taken and not played again."""
    room = asyncio.Semaphore(max_concurrent)
    known = {(each.task.id, each.attempt): each for each in finished if each.stop.scored}

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
            wanted = [(task, index) for task in tasks for index in range(attempts)]
            running = {
                (task.id, index): playing.create_task(one(task, index))
                for task, index in wanted
                if (task.id, index) not in known
            }
    except BaseExceptionGroup as faults:
        raise first_fault(faults) from faults
    keys = [(task.id, index) for task, index in wanted]
    return [known[key] if key in known else running[key].result() for key in keys]


def to_report(trajectories: Sequence[Trajectory], *, version: int) -> dict[str, Any]:
    """Results per environment and per category, in the order of their names."""
    results = summarise(trajectories)
    return {
        "version": version,
        "mean_success": mean_success(results),
        "environments": [result.to_dict() for result in results],
        "categories": [result.to_dict() for result in summarise_categories(trajectories)],
        "failures": {result.environment: _causes(trajectories, result.environment) for result in results},
    }


def _causes(trajectories: Sequence[Trajectory], environment: str) -> dict[str, int]:
    """The most frequent causes of unscored sessions."""
    failed = [each.failure for each in trajectories if each.task.environment == environment and each.failure]
    return dict(Counter(failed).most_common(CAUSES))
