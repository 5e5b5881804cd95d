"""The noise of sampling. Promise: a token's number is a function of seed and position alone, whatever else the engine is doing."""

from __future__ import annotations

import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def noise(seed: int, *, start: int, count: int) -> np.ndarray:
    """`count` numbers in [0, 1), one for each position from `start` on."""
    drawn = Noise(seed)
    return np.array([drawn.at(position) for position in range(start, start + count)])


class Noise:
    """SplitMix64 in counter mode, so that any position's number can be made alone. Plain integers: a generation ends after a few tokens
    more often than not, and an array for all it might have sampled costs more than the few."""

    __slots__ = ("origin",)

    def __init__(self, seed: int) -> None:
        self.origin = _mix(seed & _MASK)

    def at(self, position: int) -> float:
        return (_mix((self.origin + _GOLDEN * (position + 1)) & _MASK) >> 11) * 2.0**-53


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
