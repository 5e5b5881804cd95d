"""The worth of a trajectory by its reward. Promise: independent of the order inside a group.

    group            A_i = R_i - mean_G                          Dr. GRPO (2503.20783)
    group, std       A_i = (R_i - mean_G) / std_G                GRPO (2402.03300), std over n
    leave_one_out    A_i = R_i - mean of the others              RLOO (2402.14740)
    reward           A_i = R_i                                   REINFORCE

A trajectory gets one score, however many sequences it forked into. In the first three a group of
equal rewards gets exactly 0. Left out: GRPO's epsilon under the std (equal rewards are found by
tolerance instead), and the n - 1 of some implementations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from typing import Literal

import numpy as np
from pydantic import Field

from ludus.config import Section
from ludus.config.pieces import advantage
from ludus.types import Group

TOLERANCE = 1e-6
"""Rewards closer than this (relative above 1) are equal: the difference between 0.1 + 0.2 and 0.3
is rounding, and a std would turn it into +-1."""


Normalise = Literal["std", "none", "batch"]


class GroupOptions(Section):
    normalise: Normalise = "std"
    """std: divide by the group's standard deviation (GRPO). none: only subtract the group's mean
    (Dr. GRPO). batch: whiten over the sampled tokens of the batch."""


class Whitened(Section):
    normalise: Literal["none", "batch"] = "none"
    """batch: whiten over the sampled tokens of the batch (REINFORCE++). none: off."""


class Discounted(Whitened):
    discount: float = Field(default=1.0, gt=0, le=1)
    """Discount gamma per turn."""


@advantage("group", compares=True, filter="zero_variance")
def of_group(group: Group, options: GroupOptions) -> np.ndarray:
    return group_advantages(rewards_of(group), normalise=options.normalise)


@advantage("leave_one_out", compares=True, filter="zero_variance")
def leave_one_out(group: Group, options: Whitened) -> np.ndarray:
    return leave_one_out_advantages(rewards_of(group))


@advantage("reward")
def reward_alone(group: Group, options: Whitened) -> np.ndarray:
    return np.array(rewards_of(group), dtype=np.float32)


def rewards_of(group: Group) -> list[float]:
    return [trajectory.reward for trajectory in group.trajectories]


def differs(rewards: Seq[float] | np.ndarray) -> bool:
    """Whether a group's rewards differ by more than rounding."""
    if len(rewards) < 2:
        return False
    low, high = float(np.min(rewards)), float(np.max(rewards))
    return high - low > TOLERANCE * max(1.0, abs(low), abs(high))


def group_advantages(rewards: Seq[float], *, normalise: Normalise) -> np.ndarray:
    """reward - mean, with `std` divided by the deviation over n. Example: [0, 1] -> [-1, 1].
    `fsum` rounds once, so a permutation of the group permutes the result and changes no bit."""
    if not differs(rewards):
        return np.zeros(len(rewards), dtype=np.float32)
    mean = math.fsum(rewards) / len(rewards)
    centred = np.array([reward - mean for reward in rewards], dtype=np.float64)
    if normalise == "std":
        centred /= math.sqrt(math.fsum(centred**2) / len(centred))
    return centred.astype(np.float32)


def leave_one_out_advantages(rewards: Seq[float]) -> np.ndarray:
    """reward - mean of the others = n / (n - 1) (reward - mean): a baseline without bias."""
    if not differs(rewards):
        return np.zeros(len(rewards), dtype=np.float32)
    return np.array([rewards[i] - mean_of_others(rewards, i) for i in range(len(rewards))], dtype=np.float32)


def mean_of_others(rewards: Seq[float], index: int) -> float:
    """0 if there are no others: a baseline must not contain the trajectory's own reward."""
    if len(rewards) < 2:
        return 0.0
    return (math.fsum(rewards) - rewards[index]) / (len(rewards) - 1)
