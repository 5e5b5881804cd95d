"""Metrics of the groups of one optimiser step. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq

import numpy as np

from ludus.types import CURRENT, Batch, Group, Sequence, Trajectory


def step_metrics(groups: Seq[Group], batch: Batch, *, version: int) -> dict[str, float]:
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    staleness = [group.staleness(version) for group in groups]
    return {
        **batch.metrics,
        **_by_environment(trajectories),
        **_reward_stds(groups),
        "staleness/mean": float(np.mean(staleness)),
        "staleness/max": float(max(staleness)),
        "tokens/batch": float(batch.num_tokens),
        "tokens/generated": float(sum(t.num_sampled for t in trajectories)),
        "tokens/off_policy": _off_policy_share(trajectories),
        "trajectories/trained": float(len(trajectories)),
        "trajectories/forks": float(sum(t.num_forks for t in trajectories)),
        "time/generate_s": sum(turn.generate_s for t in trajectories for turn in t.turns),
        "time/environment_s": sum(turn.act_s for t in trajectories for turn in t.turns),
    }


def _off_policy_share(trajectories: Iterable[Trajectory]) -> float:
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    others = sum(turn.num_tokens for turn in turns if turn.policy != CURRENT)
    return others / max(1, sum(turn.num_tokens for turn in turns))


def kept_shares(groups: Seq[Group], counts: Mapping[str, int]) -> dict[str, float]:
    """The share of groups played for this batch that were kept, in all and by environment."""
    kept = Counter(group.task.environment for group in groups)
    prefix = "groups/replaced/"
    replaced = Counter({name.removeprefix(prefix): count for name, count in counts.items() if name.startswith(prefix)})
    names = sorted(kept.keys() | replaced.keys())
    shares = {f"groups/kept/{name}": kept[name] / (kept[name] + replaced[name]) for name in names}
    return {"groups/kept": kept.total() / (kept.total() + replaced.total()), **shares}


def _by_environment(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    grouped: defaultdict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        grouped[trajectory.task.environment].append(trajectory)
    metrics: dict[str, float] = {}
    for name, played in sorted(grouped.items()):
        metrics[f"train/reward/{name}"] = float(np.mean([t.reward for t in played]))
        metrics[f"train/success/{name}"] = float(np.mean([t.success for t in played]))
        metrics[f"train/turns/{name}"] = float(np.mean([len(t.turns) for t in played]))
        metrics[f"train/max_turns/{name}"] = float(np.mean([t.max_turns for t in played]))
        metrics[f"train/entropy/{name}"] = _surprise(played)
        metrics[f"train/repeats/{name}"] = _repeats(played)
        turns = sum(len(t.turns) for t in played)
        metrics[f"train/turn_tokens/{name}"] = sum(t.num_sampled for t in played) / max(1, turns)
        metrics[f"trajectories/invalid_rate/{name}"] = sum(t.num_invalid for t in played) / max(1, turns)
    return metrics


def _reward_stds(groups: Iterable[Group]) -> dict[str, float]:
    stds: defaultdict[str, list[float]] = defaultdict(list)
    for group in groups:
        stds[group.task.environment].append(float(np.std([t.reward for t in group.trajectories])))
    return {f"groups/reward_std/{name}": float(np.mean(own)) for name, own in sorted(stds.items())}


def _surprise(trajectories: Iterable[Trajectory]) -> float:
    """-mean logprob of the current policy's tokens: an estimate of its entropy."""
    sampled = [s.logprobs[_own(t, s)] for t in trajectories for s in t.sequences]
    flat = np.concatenate([*sampled, np.zeros(0, np.float32)])
    return float(-flat.mean()) if len(flat) else 0.0


def _repeats(trajectories: Iterable[Trajectory]) -> float:
    """The share of 4-grams of the current policy that occurred before in the same turn."""
    total = distinct = 0
    for own, sequence in ((_own(t, sequence), sequence) for t in trajectories for sequence in t.sequences):
        for turn in np.unique(sequence.turns[own]):
            said = sequence.ids[own & (sequence.turns == turn)].tolist()
            runs = list(zip(said, said[1:], said[2:], said[3:], strict=False))
            total, distinct = total + len(runs), distinct + len(set(runs))
    return (total - distinct) / max(1, total)


def _own(trajectory: Trajectory, sequence: Sequence) -> np.ndarray:
    """(T,) mask of the current policy's tokens; those of an endpoint in text have no logprobs."""
    others = [turn.index for turn in trajectory.turns if turn.policy != CURRENT]
    own: np.ndarray = sequence.sampled & ~np.isin(sequence.turns, others) if others else sequence.sampled
    return own
