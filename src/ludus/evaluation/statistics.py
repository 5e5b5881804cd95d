"""Rates of an evaluation. Promise: every rate carries its n and a 95 % interval, and a failed
session is never a failed model.

Attempts at one task are not independent, so intervals count tasks, not attempts: the variance is
clustered by task (the ratio estimator, which allows different numbers of scored attempts). Success
uses Wilson's interval with the effective number of attempts, which stays inside [0, 1] and does not
shrink to a point at 0 % or 100 %."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist, fmean
from typing import Any, NamedTuple, TypeVar

from ludus.types import Task, Trajectory

K = TypeVar("K")

Z = NormalDist().inv_cdf(0.975)
"""Standard errors to each side of a 95 % interval."""


class Interval(NamedTuple):
    """An estimate with its 95 % interval. All three are NaN where nothing was scored."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1%} [{self.low:.1%}, {self.high:.1%}]"


NOTHING = Interval(math.nan, math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class EnvironmentResult:
    """Means over one environment's scored trajectories; `reward_low` is -inf with one task."""

    environment: str
    category: str
    """Only tasks whose data name this `category`; empty: all tasks."""
    num_tasks: int
    """Tasks with at least one scored trajectory."""
    num_trajectories: int
    """Scored trajectories; the n of every rate here."""
    num_unscored: int
    """Sessions that failed in the environment or engine; in no rate."""
    success: float
    success_low: float
    success_high: float
    reward: float
    reward_low: float
    reward_high: float
    turns: float
    tokens: float
    """Sampled tokens per trajectory; NaN where a server does not report them."""
    invalid_rate: float
    """Share of turns whose action could not be carried out."""
    pass_at_k: Mapping[int, float]
    """Chance that one of k attempts succeeds, for k = 2, 4, 8, ... and the attempts per task."""
    pass_at_k_low: Mapping[int, float]
    pass_at_k_high: Mapping[int, float]
    stops: Mapping[str, int]
    """All trajectories, scored or not, by stop."""

    def to_dict(self) -> dict[str, Any]:
        return {name: to_json(value) for name, value in asdict(self).items()}


def summarise(trajectories: Iterable[Trajectory]) -> list[EnvironmentResult]:
    """One result per environment, sorted by name."""
    found = _gather(trajectories, lambda trajectory: trajectory.task.environment)
    return [_summarise(found[name], environment=name) for name in sorted(found)]


def summarise_categories(trajectories: Iterable[Trajectory]) -> list[EnvironmentResult]:
    """One result per environment and category, sorted; tasks that name none are left out."""
    found = _gather(trajectories, lambda trajectory: (trajectory.task.environment, category_of(trajectory.task)))
    named = sorted(key for key in found if key[1])
    return [_summarise(found[key], environment=key[0], category=key[1]) for key in named]


def category_of(task: Task) -> str:
    category = task.data.get("category", "")
    return str(category) if isinstance(category, str | int) else ""


def mean_success(results: Sequence[EnvironmentResult]) -> Interval:
    """The unweighted mean over environments; NaN if one has no scored trajectory."""
    return mean_interval([Interval(result.success, result.success_low, result.success_high) for result in results])


def wilson(successes: float, n: float) -> Interval:
    """Wilson's score interval of a proportion; `n` may be an effective, fractional number."""
    if n <= 0:
        return NOTHING
    rate = successes / n
    centre = (rate + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * math.sqrt(rate * (1 - rate) / n + Z**2 / (4 * n**2))
    return Interval(rate, min(rate, max(0.0, centre - half)), max(rate, min(1.0, centre + half)))


def clustered_success(clusters: Sequence[Sequence[bool]]) -> Interval:
    """Success over tasks with several attempts each."""
    return _clustered_wilson(clusters, num_attempts=sum(map(len, clusters)))


def clustered_mean(clusters: Sequence[Sequence[float]]) -> Interval:
    """Mean over all attempts, Student's t on the variance between tasks; infinite with one task."""
    values = [value for cluster in clusters for value in cluster]
    if not values:
        return NOTHING
    mean, num_tasks = fmean(values), sum(bool(cluster) for cluster in clusters)
    if num_tasks < 2:
        return Interval(mean, -math.inf, math.inf)
    half = student_t(num_tasks - 1) * math.sqrt(_clustered_variance(clusters, mean=mean))
    return Interval(mean, mean - half, mean + half)


def mean_interval(parts: Sequence[Interval]) -> Interval:
    """The mean of independent estimates; each side's distances to the limits add in squares."""
    if not parts:
        return NOTHING
    mean = fmean(part.value for part in parts)
    below = math.hypot(*(part.value - part.low for part in parts)) / len(parts)
    above = math.hypot(*(part.high - part.value for part in parts)) / len(parts)
    return Interval(mean, mean - below, mean + above)


def pass_at_k(clusters: Sequence[Sequence[bool]], k: int) -> Interval:
    """Unbiased: the mean over tasks with n >= k attempts of 1 - C(n - c, k) / C(n, k)."""
    rates = [
        [1 - math.comb(len(cluster) - sum(cluster), k) / math.comb(len(cluster), k)]
        for cluster in clusters
        if len(cluster) >= k
    ]
    return _clustered_wilson(rates, num_attempts=sum(map(len, clusters)))


def _clustered_wilson(clusters: Sequence[Sequence[float]], *, num_attempts: int) -> Interval:
    """The mean of rates with Wilson's interval at the effective number of attempts, which lies
    between the number of tasks and `num_attempts`."""
    rates = [float(rate) for cluster in clusters for rate in cluster]
    if not rates:
        return NOTHING
    mean, num_tasks = fmean(rates), sum(bool(cluster) for cluster in clusters)
    variance = _clustered_variance(clusters, mean=mean)
    known = mean * (1 - mean) / variance if variance and 0 < mean < 1 else num_tasks
    effective = min(num_attempts, max(num_tasks, known))
    return wilson(mean * effective, effective)._replace(value=mean)


def student_t(degrees: int) -> float:
    """97.5 % quantile of Student's t: exact for 1 and 2 degrees, else within 0.01."""
    if degrees == 1:
        return math.tan(math.pi * 0.475)
    if degrees == 2:
        return 0.95 * math.sqrt(2 / (1 - 0.95**2))
    z, v = Z, degrees
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4)
    )


def _clustered_variance(clusters: Sequence[Sequence[float]], *, mean: float) -> float:
    """Variance of the mean when only clusters are independent; 0 for a single cluster."""
    filled = [cluster for cluster in clusters if cluster]
    n, m = sum(map(len, filled)), len(filled)
    if m < 2:
        return 0.0
    squares = sum(sum(value - mean for value in cluster) ** 2 for cluster in filled)
    return m / (m - 1) * squares / n**2


def _summarise(trajectories: Sequence[Trajectory], *, environment: str, category: str = "") -> EnvironmentResult:
    scored = [trajectory for trajectory in trajectories if trajectory.stop.scored]
    attempts = _gather(scored, lambda trajectory: trajectory.task.id).values()
    successes = [[trajectory.success for trajectory in each] for each in attempts]
    success = clustered_success(successes)
    reward = clustered_mean([[trajectory.reward for trajectory in each] for each in attempts])
    passes = {k: pass_at_k(successes, k) for k in _ks(min(map(len, successes), default=0))}
    turns = [turn for trajectory in scored for turn in trajectory.turns]
    counted = bool(scored) and all(turn.num_tokens for turn in turns)  # else its server did not count them
    return EnvironmentResult(
        environment=environment,
        category=category,
        num_tasks=len(attempts),
        num_trajectories=len(scored),
        num_unscored=len(trajectories) - len(scored),
        success=success.value,
        success_low=success.low,
        success_high=success.high,
        reward=reward.value,
        reward_low=reward.low,
        reward_high=reward.high,
        turns=len(turns) / len(scored) if scored else math.nan,
        tokens=fmean(trajectory.num_sampled for trajectory in scored) if counted else math.nan,
        invalid_rate=sum(trajectory.num_invalid for trajectory in scored) / max(1, len(turns)) if scored else math.nan,
        pass_at_k={k: each.value for k, each in passes.items()},
        pass_at_k_low={k: each.low for k, each in passes.items()},
        pass_at_k_high={k: each.high for k, each in passes.items()},
        stops=dict(sorted(Counter(trajectory.stop.value for trajectory in trajectories).items())),
    )


def _ks(attempts: int) -> list[int]:
    """5 -> [2, 4, 5]; pass@1 is the success."""
    powers = [2**power for power in range(1, attempts.bit_length()) if 2**power < attempts]
    return [*powers, attempts] if attempts > 1 else []


def _gather(trajectories: Iterable[Trajectory], key: Callable[[Trajectory], K]) -> dict[K, list[Trajectory]]:
    found: dict[K, list[Trajectory]] = {}
    for trajectory in trajectories:
        found.setdefault(key(trajectory), []).append(trajectory)
    return found


def to_json(value: Any) -> Any:
    """JSON knows no NaN and no infinity: what is not known is null."""
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
