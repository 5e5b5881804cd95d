"""What a trajectory is worth against its group. Promise: pure, and independent of the order inside a group.

One score per trajectory, however many sequences it forked into. A group without a difference in reward gets exactly 0.

    group            A_i = R_i - mean_G                          mean-centred (Dr. GRPO, 2503.20783)
    group, std       A_i = (R_i - mean_G) / std_G                GRPO (2402.03300), std over n
    leave one out    A_i = R_i - mean of the others              RLOO (2402.14740)

Left out: GRPO's epsilon under the std (equal rewards are found by tolerance instead), and its n - 1 in some implementations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from typing import Literal

import numpy as np

TOLERANCE = 1e-6
"""Rewards closer than this (relative above 1) are equal: 0.1 + 0.2 against 0.3 is rounding, and a std would blow it up to +-1."""


def differs(rewards: Seq[float] | np.ndarray) -> bool:
    """Whether a group's rewards differ by more than rounding."""
    if len(rewards) < 2:
        return False
    low, high = float(np.min(rewards)), float(np.max(rewards))
    return high - low > TOLERANCE * max(1.0, abs(low), abs(high))


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


def leave_one_out_advantages(rewards: Seq[float]) -> np.ndarray:
    """reward - mean of the others = n / (n - 1) (reward - mean): its own share in the baseline, which biases the mean, is gone."""
    if not differs(rewards):
        return np.zeros(len(rewards), dtype=np.float32)
    return np.array([rewards[i] - mean_of_others(rewards, i) for i in range(len(rewards))], dtype=np.float32)


def mean_of_others(rewards: Seq[float], index: int) -> float:
    """0 when there are no others: a baseline must not know the trajectory's own reward."""
    if len(rewards) < 2:
        return 0.0
    return (math.fsum(rewards) - rewards[index]) / (len(rewards) - 1)
