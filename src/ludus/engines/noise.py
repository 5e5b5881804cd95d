"""The noise of sampling. Promise: a token's number is a function of seed and position alone.

SplitMix64 in counter mode, so that the number of any position can be computed by itself. Plain
integers: most generations end after a few tokens, and an array for the rest would cost more.
"""

from __future__ import annotations

import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def noise(seed: int, *, start: int, count: int) -> np.ndarray:
    """`count` numbers in [0, 1), one for each position from `start` on."""
    origin = noise_origin(seed)
    return np.array([uniform(origin, position) for position in range(start, start + count)])


def noise_origin(seed: int) -> int:
    """Where the counter of a seed starts."""
    return _mix(seed & _MASK)


def uniform(origin: int, position: int) -> float:
    return (_mix((origin + _GOLDEN * (position + 1)) & _MASK) >> 11) * 2.0**-53


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
