"""Tokens of one microbatch. Promise: what a person asked for, else what the device's memory holds; less once that was too much."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from ludus.errors import TrainerFailed, describe
from ludus.models.faults import is_out_of_memory

T = TypeVar("T")
FIRST_TOKENS = 4096
"""On a CPU, which has enough with it, for good; on a GPU until it was measured."""
MOST_TOKENS = 65536
"""A GPU is busy with half as many, but a host that also plays sessions needs the time to launch them; more would only make memory scarce
for others."""
SHARE = 0.75
"""Of the free memory: lengths differ, and others on the device want some too."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Of a device, in bytes."""

    free: int
    used: int
    peak: int

    @classmethod
    def of(cls, device: torch.device) -> Memory:
        """What torch holds and does not use counts as free."""
        used = torch.cuda.memory_allocated(device)
        free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - used
        return cls(free=free, used=used, peak=torch.cuda.max_memory_allocated(device))


OnEvent = Callable[..., None]
"""Called as on_event(kind, **fields), in the thread that asked for the step."""


class Budget:
    def __init__(self, tokens: int, *, device: torch.device, on_event: OnEvent | None = None) -> None:
        """`tokens` 0: to be found out."""
        self.tokens = tokens or FIRST_TOKENS
        self.found = bool(tokens) or device.type != "cuda"
        self.on_event = on_event
        self._device = device
        self._trying = (0, 0)

    def fitted(self, work: Callable[[], T], *, undo: Callable[[], None] | None = None) -> T:
        """`work`, begun again with smaller microbatches where memory runs out; `undo` forgets what it had begun."""
        while True:
            try:
                return work()
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                cause = describe(error)
            # out of the except block: the error's traceback holds the tensors of the pass that failed
            if undo is not None:
                undo()
            before = self.tokens
            self.shrink(cause)
            self._tell("out_of_memory", tokens=before, microbatch_tokens=self.tokens, text=cause)

    @contextmanager
    def microbatch(self, *, tokens: int, sequences: int) -> Iterator[None]:
        """Around the forward and backward pass of a microbatch. The first that is at least half full is measured."""
        self._trying = (tokens, sequences)
        if self.found or 2 * tokens < self.tokens:
            yield
            return
        torch.cuda.reset_peak_memory_stats(self._device)
        before = Memory.of(self._device)
        yield
        self.learn(tokens, before=before, after=Memory.of(self._device))
        self._tell("microbatch_tokens", microbatch_tokens=self.tokens)

    def learn(self, tokens: int, *, before: Memory, after: Memory) -> None:
        self.tokens = affordable(tokens, taken=after.peak - before.used, free=before.free)
        self.found = True

    def shrink(self, cause: str) -> None:
        """After the microbatch that was being tried did not fit. One sequence cannot be split."""
        tokens, sequences = self._trying
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        if sequences <= 1:
            raise TrainerFailed(
                f"a single sequence of {tokens} tokens does not fit into the memory of {self._device} ({cause}). Weights and optimiser "
                "are as before the step. Set trainer.checkpoint_activations = true, lower rollout.max_tokens, train adapters "
                "(lora.rank = 16), or leave the engine less of the device (engine.memory)."
            )
        self.tokens, self.found = max(1, tokens // 2), True

    def _tell(self, kind: str, **fields: Any) -> None:
        if self.on_event is not None:
            self.on_event(kind, **fields)


@contextmanager
def naming_shortage(what: str, *, device: torch.device) -> Iterator[None]:
    """Where nothing can be split, memory that runs out ends the run with what to change."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise TrainerFailed(
            f"{what} do not fit into the memory of {device}: {describe(error)}. A trained weight takes up to 18 bytes; train adapters "
            "(lora.rank = 16) or a smaller model, or leave the engine less of the device (engine.memory)."
        ) from None


def affordable(tokens: int, *, taken: int, free: int) -> int:
    """How many tokens fit into SHARE of `free` bytes where `tokens` took `taken` of them; a multiple of 256."""
    fit = int(tokens * SHARE * free / max(1, taken))
    return max(256, min(MOST_TOKENS, fit) // 256 * 256)
