"""Held-out tasks to trajectories to a report. Promise: the same tasks and noise for every model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from ludus.evaluation.statistics import mean_success, summarise, summarise_categories
from ludus.rollout.player import OnTrajectory, Player, ignore, play_all
from ludus.types import CURRENT, Order, Task, Trajectory

RETRIES = 1
"""Further tries of an attempt that ended unscored; after that it is reported as unscored."""

CAUSES = 3
"""Causes of unscored sessions listed for each environment."""


async def evaluate(
    tasks: Sequence[Task],
    *,
    player: Player,
    attempts: int,
    seed: int,
    prefix: str = "eval",
    policy: str = CURRENT,
    temperature: float | None = None,
    on_trajectory: OnTrajectory = ignore,
    finished: Iterable[Trajectory] = (),
) -> list[Trajectory]:
    """Plays every task `attempts` times, except the attempts that are scored in `finished`."""
    known = {(each.task.id, each.attempt): each for each in finished if each.stop.scored}
    keys = [(task, index) for task in tasks for index in range(attempts)]
    order = partial(Order, retries=RETRIES, policy=policy, temperature=temperature)
    orders = [
        order(f"{prefix}/{task.id}", task, seed=(seed, "evaluation", task.id), attempts=(index,))
        for task, index in keys
        if (task.id, index) not in known
    ]
    played = await play_all(orders, player=player, on_trajectory=on_trajectory)
    known |= {(each.task.id, each.attempt): each for each in played}
    return [known[task.id, index] for task, index in keys]


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
