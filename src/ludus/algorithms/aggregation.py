"""The weight of a token in the loss of a batch. Promise: weights are fixed before the batch is
split, so no denominator depends on the split.

    token        1 / tokens of the batch                                  DAPO (2503.14476)
    trajectory   1 / (trajectories x tokens of the trajectory)
    sequence     1 / (trajectories x its sequences x tokens of the one)   GRPO (2402.03300)
    constant     1 / (trajectories x a constant)                          Dr. GRPO (2503.20783)

A forked trajectory counts once; one without sampled tokens is left out of the denominator.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

from pydantic import Field

from ludus.config import Section
from ludus.config.pieces import piece

Counts = Seq[Seq[int]]
"""`counts[i][s]`: the sampled tokens of sequence s of trajectory i."""
Weights = list[list[float]]
"""The weight of one token of each sequence."""


class ConstantOptions(Section):
    aggregate_tokens: int = Field(gt=0)
    """Divides a trajectory's sum over tokens; for example the most tokens that it may sample."""


@piece("aggregate", "token")
def by_token(counts: Counts, options: Section) -> Weights:
    total = sum(map(sum, counts))
    return _inverse(counts, lambda own, count: total)


@piece("aggregate", "trajectory")
def by_trajectory(counts: Counts, options: Section) -> Weights:
    trajectories = _num_trajectories(counts)
    return _inverse(counts, lambda own, count: trajectories * sum(own))


@piece("aggregate", "sequence")
def by_sequence(counts: Counts, options: Section) -> Weights:
    trajectories = _num_trajectories(counts)
    return _inverse(counts, lambda own, count: trajectories * sum(other > 0 for other in own) * count)


@piece("aggregate", "constant")
def by_constant(counts: Counts, options: ConstantOptions) -> Weights:
    trajectories = _num_trajectories(counts)
    return _inverse(counts, lambda own, count: trajectories * options.aggregate_tokens)


def _inverse(counts: Counts, denominator: Callable[[Seq[int], int], int]) -> Weights:
    """1 / denominator(counts of the trajectory, count), and 0 for a sequence without samples."""
    return [[1.0 / denominator(own, count) if count else 0.0 for count in own] for own in counts]


def _num_trajectories(counts: Counts) -> int:
    return sum(sum(own) > 0 for own in counts)
