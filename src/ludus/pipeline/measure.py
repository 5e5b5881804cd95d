"""What a step looked like, for people: metrics of the groups that were trained. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from ludus.types import Batch, Group, Trajectory


def step_metrics(groups: Sequence[Group], batch: Batch, *, version: int) -> dict[str, float]:
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    staleness = [group.staleness(version) for group in groups]
    return {
        **batch.metrics,
        **_by_environment(trajectories),
        "staleness/mean": float(np.mean(staleness)),
        "staleness/max": float(max(staleness)),
        "tokens/batch": float(batch.num_tokens),
        "tokens/generated": float(sum(t.num_sampled for t in trajectories)),
        "trajectories/trained": float(len(trajectories)),
        "trajectories/forks": float(sum(t.num_forks for t in trajectories)),
        "time/generate_s": sum(turn.generate_s for t in trajectories for turn in t.turns),
        "time/environment_s": sum(turn.act_s for t in trajectories for turn in t.turns),
    }


def _by_environment(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    grouped: defaultdict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        grouped[trajectory.task.environment].append(trajectory)
    metrics: dict[str, float] = {}
    for name, played in sorted(grouped.items()):
        metrics[f"train/reward/{name}"] = float(np.mean([t.reward for t in played]))
        metrics[f"train/success/{name}"] = float(np.mean([t.success for t in played]))
        metrics[f"train/turns/{name}"] = float(np.mean([len(t.turns) for t in played]))
        turns = sum(len(t.turns) for t in played)
        metrics[f"trajectories/invalid_rate/{name}"] = sum(t.num_invalid for t in played) / max(1, turns)
    return metrics
