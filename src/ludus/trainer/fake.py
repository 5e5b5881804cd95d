"""A trainer that learns nothing, for tests: it keeps its batches and agrees with a FakeEngine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ludus.trainer.checkpoint import Checkpoint, checkpoint_folder, load_checkpoint, save_checkpoint
from ludus.trainer.trainer import TrainerStats
from ludus.types import Batch, Trajectory
from ludus.weights.channel import Snapshot
from ludus.weights.memory import MemoryChannel


class FakeTrainer:
    source = MemoryChannel()
    """Empty: a FakeEngine fetches nothing."""

    def __init__(self, *, step_s: float = 0.0, logprob: float = -1.0) -> None:
        self.version = 0
        self.batches: list[Batch] = []
        self.closed = False
        self._step_s, self._logprob = step_s, logprob

    async def step(self, batch: Batch) -> dict[str, float]:
        await asyncio.sleep(self._step_s)
        self.batches.append(batch)
        return {"loss": 0.0}

    async def values(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        """Return 0 everywhere."""
        return [np.zeros(sum(sequence.num_sampled for sequence in t.sequences)) for t in trajectories]

    async def publish(self) -> int:
        self.version = len(self.batches)
        return self.version

    async def logprobs(self, ids: Sequence[int]) -> list[float]:
        return [self._logprob] * (len(ids) - 1)

    async def save(
        self, run_folder: Path, *, state: Mapping[str, Any], keep: int, policies: Mapping[str, Snapshot]
    ) -> Path:
        folder = checkpoint_folder(run_folder, self.version)
        save_checkpoint(folder, tensors={}, state={**state, "trainer": {"version": self.version}}, keep=keep)
        return folder

    async def restore(self, folder: Path) -> Checkpoint:
        checkpoint = load_checkpoint(folder)
        self.version = int(checkpoint.state["trainer"]["version"])
        return checkpoint

    async def export(self, folder: Path) -> Path:
        """Write the version alone."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "fake.json").write_text(json.dumps({"version": self.version}))
        return folder

    def stats(self) -> TrainerStats:
        return TrainerStats(device="none", parameters=0)

    async def ended(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.closed = True
