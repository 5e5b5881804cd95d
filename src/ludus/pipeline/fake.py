"""A trainer that learns nothing, for tests of loops and algorithms. It counts, keeps its batches, and agrees with a FakeEngine."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from ludus.types import Batch, Trajectory


class FakeTrainer:
    def __init__(self, *, step_s: float = 0.0, logprob: float = -1.0) -> None:
        self.version = 0
        self.batches: list[Batch] = []
        self._step_s, self._logprob = step_s, logprob

    def step(self, batch: Batch) -> dict[str, float]:
        time.sleep(self._step_s)
        self.batches.append(batch)
        return {"loss": 0.0}

    def values(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        """It expects nothing."""
        return [np.zeros(sum(sequence.num_sampled for sequence in t.sequences)) for t in trajectories]

    def publish(self) -> int:
        self.version = len(self.batches)
        return self.version

    def logprobs(self, ids: Sequence[int]) -> list[float]:
        return [self._logprob] * (len(ids) - 1)
