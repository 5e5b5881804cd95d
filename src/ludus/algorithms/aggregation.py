"""What one token weighs in the loss of a batch. Promise: weights are fixed before the batch is split, so no denominator depends on it.

    token        1 / tokens of the batch                                  DAPO's token mean (2503.14476)
    trajectory   1 / (trajectories x tokens of the trajectory)            every trajectory alike, however long
    sequence     1 / (trajectories x its sequences x tokens of the one)   GRPO's mean of means (2402.03300)
    constant     1 / (trajectories x a constant)                          Dr. GRPO (2503.20783): no length bias

A trajectory that forked into several sequences counts once in all of them. One without sampled tokens has nothing to weigh and is left
out of the denominator.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Literal

Aggregate = Literal["token", "sequence", "trajectory", "constant"]


def token_weights(num_sampled: Seq[Seq[int]], *, aggregate: Aggregate, constant: int = 0) -> list[list[float]]:
    """The weight of one token of each sequence; `num_sampled[i][s]` counts the sampled tokens of sequence s of trajectory i."""
    counts = [sum(own) for own in num_sampled]
    speaking = sum(count > 0 for count in counts)
    if aggregate == "token":
        total = sum(counts)
        return [[1.0 / total if count else 0.0] * len(own) for own, count in zip(num_sampled, counts, strict=True)]
    if aggregate == "trajectory":
        return [
            [1.0 / (speaking * count) if count else 0.0] * len(own)
            for own, count in zip(num_sampled, counts, strict=True)
        ]
    if aggregate == "sequence":
        return [_by_sequence(own, speaking) for own in num_sampled]
    assert constant > 0, "aggregate constant needs its constant"
    return [[1.0 / (speaking * constant) if count else 0.0 for count in own] for own in num_sampled]


def _by_sequence(own: Seq[int], speaking: int) -> list[float]:
    rows = sum(count > 0 for count in own)
    return [1.0 / (speaking * rows * count) if count else 0.0 for count in own]
