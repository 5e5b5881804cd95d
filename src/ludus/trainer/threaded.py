"""A LocalTrainer in a thread of its own, so that sessions continue while it computes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from ludus.errors import TrainerFailed, describe
from ludus.models.faults import is_lost, lost
from ludus.models.loading.load import device_name
from ludus.trainer.checkpoint import Checkpoint
from ludus.trainer.local import LocalTrainer
from ludus.trainer.trainer import TrainerStats
from ludus.types import Batch, Trajectory
from ludus.weights.channel import Snapshot, Source

T = TypeVar("T")


class ThreadedTrainer:
    def __init__(self, trainer: LocalTrainer) -> None:
        self.local = trainer
        device = trainer.model.device
        self._device = device
        self._thread = ThreadPoolExecutor(1, "trainer", initializer=lambda: make_current(device))

    @property
    def version(self) -> int:
        return self.local.version

    @property
    def source(self) -> Source:
        return self.local.channel

    async def step(self, batch: Batch) -> dict[str, float]:
        return await self._run(lambda: self.local.step(batch))

    async def values(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        return await self._run(lambda: self.local.values(trajectories))

    async def publish(self) -> int:
        return await self._run(self.local.publish)

    async def logprobs(self, ids: Sequence[int]) -> list[float]:
        return await self._run(lambda: self.local.logprobs(ids))

    async def save(
        self, run_folder: Path, *, state: Mapping[str, Any], keep: int, policies: Mapping[str, Snapshot]
    ) -> Path:
        return await self._run(lambda: self.local.save(run_folder, state=state, keep=keep, policies=policies))

    async def restore(self, folder: Path) -> Checkpoint:
        return await self._run(lambda: self.local.restore(folder))

    async def export(self, folder: Path) -> Path:
        return await self._run(lambda: self.local.export(folder))

    def stats(self) -> TrainerStats:
        model = self.local.model
        return TrainerStats(device=device_name(model.device), parameters=model.num_parameters())

    async def ended(self) -> None:
        """A failure is raised by the call that it happens in."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.shutdown)

    async def _run(self, work: Callable[[], T]) -> T:
        def named() -> T:
            with naming_loss(self._device):
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._thread, named)


def make_current(device: torch.device) -> None:
    """Make `device` current in this thread: our kernels run on a thread's current device."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


@contextmanager
def naming_loss(device: torch.device) -> Iterator[None]:
    """Turn the error of a GPU that disappeared into a TrainerFailed."""
    try:
        yield
    except RuntimeError as error:
        if not is_lost(error):
            raise
        raise TrainerFailed(lost(device, describe(error))) from error
