"""Which groups get gradient. Promise: pure, and independent of the order of groups but for ties.

    none            all of them
    zero_variance   those whose rewards differ: with a group-relative advantage the others have none, and only dilute the mean
    dynamic         the same, and the loop plays others in their place: DAPO's dynamic sampling (2503.14476)
    top_share       of those that differ, the share of all groups with the greatest reward std: StarPO-S (2504.20073), 0.25 there
    top_p           of those that differ, the greatest until they hold this share of all std: RAGEN-2's linear top-p (2604.06268), 0.9 there

For a reward of 0 or 1 with success rate p the score is sqrt(p (1 - p)): groups at the edge of what the policy can do.
Left out: RAGEN-2's softmax top-p (it depends on the scale of rewards), min-p, and scores other than the std.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from typing import Literal

import numpy as np

from ludus.algorithms.advantages import differs
from ludus.types import Group

Filter = Literal["none", "zero_variance", "dynamic", "top_share", "top_p"]
Rescale = Literal["none", "linear", "sqrt"]


def group_differs(group: Group) -> bool:
    return differs([trajectory.reward for trajectory in group.trajectories])


def reward_std(group: Group) -> float:
    """Exactly 0 where the rewards are equal up to rounding."""
    rewards = [trajectory.reward for trajectory in group.trajectories]
    return float(np.std(rewards)) if differs(rewards) else 0.0


def keep(groups: Seq[Group], *, rule: Filter, share: float = 1.0) -> tuple[Group, ...]:
    """The groups that are trained, in the order they came."""
    if rule == "none":
        return tuple(groups)
    if rule in ("zero_variance", "dynamic"):
        return tuple(group for group in groups if group_differs(group))
    scores = [reward_std(group) for group in groups]
    best = sorted((index for index, score in enumerate(scores) if score > 0), key=lambda index: (-scores[index], index))
    count = math.ceil(share * len(groups)) if rule == "top_share" else _nucleus([scores[i] for i in best], share)
    return tuple(groups[index] for index in sorted(best[:count]))


def rescaled(share: float, *, rescale: Rescale) -> float:
    """What the loss is multiplied with when only `share` of the groups is kept, so that few groups make a small step."""
    return {"none": 1.0, "linear": share, "sqrt": math.sqrt(share)}[rescale]


def _nucleus(scores: Seq[float], share: float) -> int:
    """How many of the sorted scores it takes to hold `share` of their sum."""
    held, wanted = 0.0, share * math.fsum(scores) * (1 - 1e-9)
    for count, score in enumerate(scores):
        if held >= wanted:
            return count
        held += score
    return len(scores)
