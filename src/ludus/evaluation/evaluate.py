"""Held-out tasks to trajectories to a report, without a trainer. Promise: the same tasks and noise for every model that is compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ludus.evaluation.statistics import mean_success, summarise, summarise_categories
from ludus.rollout.player import OnTrajectory, Player, ignore, play_all
from ludus.types import CURRENT, Order, Task, Trajectory

RETRIES = 1
"""An attempt that the world ended is played once more; after that it is reported as unscored, not as a failure of the model."""

CAUSES = 3
"""Of unscored sessions, told for each environment."""


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
    """Plays every task `attempts` times, in order. Attempts that are scored in `finished` are not played again."""
    known = {(each.task.id, each.attempt): each for each in finished if each.stop.scored}
    keys = [(task, index) for task in tasks for index in range(attempts)]
    orders = [
        Order(
            f"{prefix}/{task.id}",
            task,
            seed=(seed, "evaluation", task.id),
            attempts=(index,),
            retries=RETRIES,
            policy=policy,
            temperature=temperature,
        )
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
