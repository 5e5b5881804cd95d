from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.engines.noise import noise


@settings(deadline=None)
@given(seed=st.integers(-(2**63), 2**64 - 1), start=st.integers(0, 10**6), skip=st.integers(0, 50))
def test_noise_depends_on_seed_and_position_alone(seed: int, start: int, skip: int):
    block = noise(seed, start=start, count=60)
    assert np.array_equal(block[skip:], noise(seed, start=start + skip, count=60 - skip))
    assert block.min() >= 0
    assert block.max() < 1


def test_noise_is_uniform_and_seeds_are_unrelated():
    blocks = [noise(seed, start=0, count=20_000) for seed in range(3)]
    for block in blocks:
        counts, _ = np.histogram(block, bins=20, range=(0, 1))
        assert abs(counts - 1000).max() < 160  # five standard deviations
    correlations = np.corrcoef(blocks)[np.triu_indices(3, 1)]
    assert abs(correlations).max() < 0.04
