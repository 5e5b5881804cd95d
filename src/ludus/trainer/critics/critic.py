"""The critic of a trainer: it values sampled tokens before a step and learns from its batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from torch import Tensor

from ludus.trainer.checkpoint import Checkpoint
from ludus.types import Batch, Trajectory


class Critic(Protocol):
    alone: int
    """Steps at the start of a run in which the critic learns and the policy does not."""

    def values(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        """Return, for each trajectory, the value before every sampled token (M,).

        A critic that learns from replay (`Archer`) adds the trajectories to it and trains here."""

    def step(self, batch: Batch) -> dict[str, float]:
        """Learn from the batch of one optimiser step, before the policy moves; return metrics."""

    def tensors(self) -> dict[str, Mapping[str, Tensor]]:
        """Return what a checkpoint must hold, by the name of its file."""

    def restore(self, checkpoint: Checkpoint) -> None: ...
