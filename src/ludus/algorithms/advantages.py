"""What a trajectory is worth against its group, and what its tokens weigh. Promise: pure, and independent of the order inside a group.

One score per trajectory, however many sequences it forked into. A group without a difference in reward gets exactly 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from typing import Literal

import numpy as np

TOLERANCE = 1e-6
"""Rewards closer than this (relative above 1) are equal: 0.1 + 0.2 against 0.3 is rounding, and a std would blow it up to +-1."""


def differs(rewards: Seq[float]) -> bool:
    """Whether a group's rewards differ by more than rounding."""
    scale = max((abs(reward) for reward in rewards), default=0.0)
    return len(rewards) > 1 and max(rewards) - min(rewards) > TOLERANCE * max(1.0, scale)


def group_advantages(rewards: Seq[float], *, normalise: Literal["std", "none"]) -> np.ndarray:
    """reward - mean, divided by the standard deviation over n (not n - 1) when `normalise` is std. Example: [0, 1] -> [-1, 1].

    `fsum` rounds once, so a permutation of the group permutes the result and changes no bit of it.
    """
    if not differs(rewards):
        return np.zeros(len(rewards), dtype=np.float32)
    mean = math.fsum(rewards) / len(rewards)
    centred = np.array([reward - mean for reward in rewards], dtype=np.float64)
    if normalise == "std":
        centred /= math.sqrt(math.fsum(centred**2) / len(centred))
    return centred.astype(np.float32)


def trajectory_weights(num_sampled: Seq[int], *, aggregate: Literal["token", "trajectory"]) -> list[float]:
    """The weight of one token of each trajectory, so that the weights of all tokens of the batch sum to 1.

    `num_sampled` counts a trajectory's sampled tokens over all its sequences, so forks never multiply it. A trajectory without
    sampled tokens has nothing to weigh and is left out of the denominator.
    """
    if aggregate == "token":
        total = sum(num_sampled)
        return [1.0 / total if count else 0.0 for count in num_sampled]
    speaking = sum(count > 0 for count in num_sampled)
    return [1.0 / (speaking * count) if count else 0.0 for count in num_sampled]
