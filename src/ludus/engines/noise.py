"""The noise of sampling. Promise: a token's number is a function of seed and position alone, whatever else the engine is doing."""

from __future__ import annotations

import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def noise(seed: int, *, start: int, count: int) -> np.ndarray:
    """`count` numbers in [0, 1), one for each position from `start` on: SplitMix64 in counter mode, so any block can be made alone."""
    origin = int(_mix(np.array([seed & _MASK], dtype=np.uint64))[0])
    first = (origin + _GOLDEN * (start + 1)) & _MASK
    states = np.uint64(first) + np.uint64(_GOLDEN) * np.arange(count, dtype=np.uint64)
    return np.asarray((_mix(states) >> np.uint64(11)) * 2.0**-53)


def _mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))
