"""Two models on the same tasks. Promise: a difference carries its n and its interval.

A pair is one attempt at one task, scored for both models. Attempts at a task are not independent,
so a task counts once, with the mean difference over its pairs. The interval of their mean is Bonett
and Price's (2012) for paired proportions: Wald's, after adding one task won and one task lost. It
keeps its 95 % with few tasks and does not shrink to a point where nothing differs. McNemar's exact
test of tasks won against tasks lost says whether the difference may be chance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from ludus.errors import ConfigError
from ludus.evaluation.statistics import NOTHING, Interval, Z, clustered_mean, mean_interval, to_json
from ludus.types import Trajectory

Key = tuple[str, int]
"""Task and attempt."""
Pair = tuple[Trajectory, Trajectory]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How B did against A on one environment's tasks. Differences are B minus A."""

    environment: str
    num_tasks: int
    """Tasks with at least one pair; the n of every interval here."""
    num_pairs: int
    num_unpaired: int
    """Attempts that are scored for one model only: left out."""
    success_a: float
    success_b: float
    difference: Interval
    """Of success."""
    reward_difference: Interval
    wins: int
    """Tasks that B does better on."""
    losses: int
    p: float
    """McNemar's exact test, two-sided."""

    def to_dict(self) -> dict[str, Any]:
        return {name: to_json(value) for name, value in asdict(self).items()}


def compare(a: Iterable[Trajectory], b: Iterable[Trajectory]) -> list[Comparison]:
    """One comparison per environment that both have played; ConfigError where there is none."""
    ours, theirs = _scored(a), _scored(b)
    pairs = {key: (ours[key], theirs[key]) for key in ours.keys() & theirs.keys()}
    for one, other in pairs.values():
        if to_json(one.task.data) != to_json(other.task.data):
            raise ConfigError(
                f"task {one.task.id!r} differs between the evaluations: the environment had other options or another "
                "version. Evaluate both with the same run file."
            )
    if not pairs:
        raise ConfigError(
            f"nothing to compare: {len(ours)} scored attempts here and {len(theirs)} there, none at the same task. "
            "Evaluate both on the same environments, split and options."
        )
    environments = sorted({one.task.environment for one, _ in pairs.values()})
    return [_compare(name, pairs, ours=ours, theirs=theirs) for name in environments]


def mean_difference(comparisons: Sequence[Comparison]) -> Interval:
    """The mean over environments, unweighted."""
    return mean_interval([each.difference for each in comparisons])


def paired_difference(differences: Sequence[float]) -> Interval:
    """The mean of one difference in [-1, 1] per task, with Bonett and Price's interval."""
    if not differences:
        return NOTHING
    value, n = fmean(differences), len(differences) + 2
    centre = sum(differences) / n
    variance = (sum(each**2 for each in differences) + 2) / n - centre**2
    half = Z * math.sqrt(max(0.0, variance) / n)
    return Interval(value, max(-1.0, min(value, centre - half)), min(1.0, max(value, centre + half)))


def mcnemar(wins: int, losses: int) -> float:
    """Two-sided and exact: twice the smaller tail of fair coins."""
    n = wins + losses
    tail: float = sum(math.comb(n, k) for k in range(min(wins, losses) + 1)) / 2**n
    return min(1.0, 2.0 * tail)


def _compare(
    environment: str, pairs: Mapping[Key, Pair], *, ours: Mapping[Key, Trajectory], theirs: Mapping[Key, Trajectory]
) -> Comparison:
    by_task: dict[str, list[Pair]] = {}
    for (task, _), pair in sorted(pairs.items()):
        if pair[0].task.environment == environment:
            by_task.setdefault(task, []).append(pair)
    successes = [
        (fmean(one.success for one, _ in each), fmean(other.success for _, other in each)) for each in by_task.values()
    ]
    differences = [b - a for a, b in successes]
    rewards = [[other.reward - one.reward for one, other in each] for each in by_task.values()]
    wins, losses = sum(each > 0 for each in differences), sum(each < 0 for each in differences)
    num_pairs = sum(map(len, by_task.values()))
    played = sum(each.task.environment == environment for side in (ours, theirs) for each in side.values())
    return Comparison(
        environment=environment,
        num_tasks=len(by_task),
        num_pairs=num_pairs,
        num_unpaired=played - 2 * num_pairs,
        success_a=fmean(a for a, _ in successes),
        success_b=fmean(b for _, b in successes),
        difference=paired_difference(differences),
        reward_difference=clustered_mean(rewards),
        wins=wins,
        losses=losses,
        p=mcnemar(wins, losses),
    )


def _scored(trajectories: Iterable[Trajectory]) -> dict[Key, Trajectory]:
    return {(each.task.id, each.attempt): each for each in trajectories if each.stop.scored}
