"""The algorithm of a run, from its config: pieces of `advantages`, `returns`, `losses` and the like, put together."""

from __future__ import annotations

from ludus.algorithms.algorithm import Algorithm, Tokens
from ludus.algorithms.policy_gradient import PolicyGradient
from ludus.config import AlgorithmConfig


def make_algorithm(config: AlgorithmConfig) -> Algorithm:
    return PolicyGradient(config)


__all__ = ["Algorithm", "PolicyGradient", "Tokens", "make_algorithm"]
