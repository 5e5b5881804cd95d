"""Algorithms by name. An algorithm is a short file built from `advantages` and `losses`."""

from __future__ import annotations

from ludus.algorithms.algorithm import Algorithm, Tokens
from ludus.algorithms.grpo import Grpo
from ludus.config import AlgorithmConfig

ALGORITHMS = {"grpo": Grpo}


def make_algorithm(config: AlgorithmConfig) -> Algorithm:
    return ALGORITHMS[config.kind](config)


__all__ = ["ALGORITHMS", "Algorithm", "Grpo", "Tokens", "make_algorithm"]
