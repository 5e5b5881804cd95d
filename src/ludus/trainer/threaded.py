"""A LocalTrainer in a thread of its own, so that sessions continue while it computes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from ludus.errors import TrainerFailed, describe
from ludus.models.faults import is_lost, lost
from ludus.models.loading.load import device_name
from ludus.trainer.local import LocalTrainer
from ludus.trainer.trainer import TrainerStats
from ludus.weights.channel import Source

T = TypeVar("T")
P = ParamSpec("P")


def _in_thread(
    method: Callable[Concatenate[LocalTrainer, P], T],
) -> Callable[Concatenate[ThreadedTrainer, P], Coroutine[Any, Any, T]]:
    async def call(self: ThreadedTrainer, /, *args: P.args, **kwargs: P.kwargs) -> T:
        def work() -> T:
            with naming_loss(self.local.model.device):
                found: T = getattr(self.local, method.__name__)(*args, **kwargs)
                return found

        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    return call


class ThreadedTrainer:
    def __init__(self, trainer: LocalTrainer) -> None:
        self.local = trainer
        self._thread = ThreadPoolExecutor(1, "trainer", initializer=make_current, initargs=(trainer.model.device,))

    step = _in_thread(LocalTrainer.step)
    values = _in_thread(LocalTrainer.values)
    publish = _in_thread(LocalTrainer.publish)
    logprobs = _in_thread(LocalTrainer.logprobs)
    save = _in_thread(LocalTrainer.save)
    restore = _in_thread(LocalTrainer.restore)
    export = _in_thread(LocalTrainer.export)

    @property
    def version(self) -> int:
        return self.local.version

    @property
    def source(self) -> Source:
        return self.local.channel

    def stats(self) -> TrainerStats:
        model = self.local.model
        return TrainerStats(device=device_name(model.device), parameters=model.num_parameters())

    async def ended(self) -> None:
        """A failure is raised by the call that it happens in."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.shutdown)


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
