"""Tokens of one microbatch: the run file's number, or what memory holds; halved on a shortage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from ludus.errors import TrainerFailed, describe
from ludus.models.faults import is_out_of_memory

T = TypeVar("T")
FIRST_TOKENS = 4096
"""The size on a CPU, and on a GPU until it is measured."""
MOST_TOKENS = 65536
"""Half as many keep a GPU busy, but a host that also plays sessions launches kernels late."""
SHARE = 0.75
"""Share of the free memory to use: lengths differ, and the engine needs some too."""


OnEvent = Callable[..., None]
"""Called as on_event(kind, **fields), in the thread that runs the step."""


class Budget:
    def __init__(self, tokens: int, *, device: torch.device, on_event: OnEvent | None = None) -> None:
        """`tokens` 0: measure it."""
        self.tokens = tokens or FIRST_TOKENS
        self.found = bool(tokens) or device.type != "cuda"
        self.on_event = on_event or (lambda kind, **fields: None)  # noqa: ARG005
        self._device = device
        self._trying = (0, 0)

    def fitted(self, work: Callable[[], T], *, undo: Callable[[], None] | None = None) -> T:
        """Run `work`; where memory runs out, call `undo` and repeat with smaller microbatches."""
        while True:
            try:
                return work()
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                cause = describe(error)
            # outside of the except block: the traceback holds the tensors of the failed pass
            if undo is not None:
                undo()
            before = self.tokens
            self.shrink(cause)
            self.on_event("out_of_memory", tokens=before, microbatch_tokens=self.tokens, text=cause)

    @contextmanager
    def microbatch(self, *, tokens: int, sequences: int) -> Iterator[None]:
        """Wrap the passes of a microbatch. The first one that is at least half full is measured."""
        self._trying = (tokens, sequences)
        if self.found or 2 * tokens < self.tokens:
            yield
            return
        torch.cuda.reset_peak_memory_stats(self._device)
        used = torch.cuda.memory_allocated(self._device)
        # memory that torch has reserved and does not use is free too
        free = torch.cuda.mem_get_info(self._device)[0] + torch.cuda.memory_reserved(self._device) - used
        yield
        self.learn(tokens, taken=torch.cuda.max_memory_allocated(self._device) - used, free=free)
        self.on_event("microbatch_tokens", microbatch_tokens=self.tokens)

    def learn(self, tokens: int, *, taken: int, free: int) -> None:
        self.tokens, self.found = affordable(tokens, taken=taken, free=free), True

    def shrink(self, cause: str) -> None:
        """Halve the budget after a microbatch that did not fit. One sequence cannot be split."""
        tokens, sequences = self._trying
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        if sequences <= 1:
            raise TrainerFailed(
                f"a single sequence of {tokens} tokens does not fit into the memory of {self._device} ({cause}). "
                "Weights and optimiser are as before the step. Set trainer.checkpoint_activations = true, lower "
                "rollout.max_tokens, train adapters (lora.rank = 16), or give the engine less memory (engine.memory)."
            )
        self.tokens, self.found = max(1, tokens // 2), True


@contextmanager
def naming_shortage(what: str, *, device: torch.device) -> Iterator[None]:
    """Turn a shortage of memory where nothing can be split into an error with the next move."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise TrainerFailed(
            f"{what} do not fit into the memory of {device}: {describe(error)}. A trained weight takes up to 18 bytes; "
            "train adapters (lora.rank = 16) or a smaller model, or give the engine less memory (engine.memory)."
        ) from None


def affordable(tokens: int, *, taken: int, free: int) -> int:
    """Tokens that fit into SHARE of `free` bytes if `tokens` took `taken`; a multiple of 256."""
    fit = int(tokens * SHARE * free / max(1, taken))
    return max(256, min(MOST_TOKENS, fit) // 256 * 256)
