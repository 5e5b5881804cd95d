"""The algorithm of a run, composed from the pieces that its config names."""

from __future__ import annotations

from ludus.algorithms.algorithm import Algorithm, Tokens
from ludus.algorithms.credit import Credit
from ludus.algorithms.policy_gradient import PolicyGradient
from ludus.algorithms.registry import advantage, group_filter, loss, reward
from ludus.config import AlgorithmConfig


def make_algorithm(config: AlgorithmConfig) -> Algorithm:
    return PolicyGradient(config)


__all__ = [
    "Algorithm", "Credit", "PolicyGradient", "Tokens", "advantage", "group_filter", "loss", "make_algorithm", "reward",
]  # fmt: skip
