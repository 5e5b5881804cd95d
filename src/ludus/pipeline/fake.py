"""A trainer that learns nothing, for tests of loops and of your own algorithms: it counts, remembers its batches, and agrees with any engine."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ludus.types import Batch


class FakeTrainer:
    def __init__(self, *, step_s: float = 0.0) -> None:
        self.version = 0
        self.batches: list[Batch] = []
        self._step_s = step_s

    def step(self, batch: Batch) -> dict[str, float]:
        time.sleep(self._step_s)
        self.batches.append(batch)
        return {"loss": 0.0}

    def publish(self) -> int:
        self.version = len(self.batches)
        return self.version

    def logprobs(self, ids: Sequence[int]) -> list[float]:
        return [0.0] * (len(ids) - 1)
