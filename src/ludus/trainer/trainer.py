"""The Trainer role: batches in, versions out. It executes per-token weights, knows no environment.

Every method may run in a thread or in other processes, so all are coroutines, and calls are made
one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ludus.types import Batch, Trajectory

if TYPE_CHECKING:
    from ludus.trainer.checkpoint import Checkpoint
    from ludus.weights.channel import Snapshot, Source


@dataclass(frozen=True, slots=True)
class TrainerStats:
    device: str
    parameters: int


class Trainer(Protocol):
    @property
    def version(self) -> int:
        """The newest published version."""

    @property
    def source(self) -> Source:
        """Where engines find the published versions."""

    async def step(self, batch: Batch) -> dict[str, float]:
        """Take one optimiser step, whole or not at all; return its metrics."""

    async def values(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        """Return, for each trajectory, the critic's value before every sampled token.

        Called only where the run has a critic. One that learns from replay (ArCHer) trains here."""

    async def publish(self) -> int:
        """Put the weights on the source as a new version; without a step since, the same one."""

    async def logprobs(self, ids: Sequence[int]) -> list[float]:
        """Return the logprob of each of ids[1:]; an engine's `score` must agree."""

    async def save(
        self, run_folder: Path, *, state: Mapping[str, Any], keep: int, policies: Mapping[str, Snapshot]
    ) -> Path:
        """Write RUN_FOLDER/checkpoints/step-N with the caller's `state`; keep the newest `keep`.

        `policies` are other sets of weights to save beside the trained ones, by name."""

    async def restore(self, folder: Path) -> Checkpoint:
        """Continue from a checkpoint and return it. Publish before an engine loads."""

    async def export(self, folder: Path) -> Path:
        """Write the model in Hugging Face format, adapters merged, with its tokenizer."""

    def stats(self) -> TrainerStats: ...

    async def ended(self) -> None:
        """Raise TrainerFailed with the cause once the trainer can no longer train; never return."""

    async def close(self) -> None: ...
