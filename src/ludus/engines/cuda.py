"""The policies of an embedded engine on a GPU: a paged cache, and a graph for every pass.

The pool of pages and the tables of their holders are allocated once and never move: graphs stay
valid while pages change holders between two passes. Tables may share pages.

The engine's thread has its own stream, so that generating and training overlap on one device; all
others use the default stream. The host waits for whatever crosses from one to the other, where it
leaves: published and loaded weights, and everything made before the thread starts.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ludus.config import EngineConfig
from ludus.engines.graphs import Decoder, LastDrawn, Prompter
from ludus.engines.pages import Pages, pages_within
from ludus.engines.plan import Collect, Pass, Plan, Span
from ludus.engines.policies import Policies
from ludus.engines.staging import StagingBuffer
from ludus.errors import ConfigError
from ludus.models.attention.cached import Shape
from ludus.models.attention.paged import PAGE, Paged, PagedCache, blocks_of, page_bytes
from ludus.models.faults import is_out_of_memory
from ludus.models.serving import own_forward
from ludus.models.transfer import placed
from ludus.types import CURRENT

# names of this module, so that tests without a GPU can replace them
current, empty_cache, graph_pool = torch.cuda.device, torch.cuda.empty_cache, torch.cuda.graph_pool_handle


class CudaPolicies(Policies):
    overlaps = True

    def __init__(
        self, model: PreTrainedModel, *, config: EngineConfig, num_rows: int, max_tokens: int, decode_steps: int
    ) -> None:
        with current(model.device):  # the caller's current device may be the trainer's
            self._take(model, max_tokens=max_tokens, replay=_replay)
        self._max_running, self._decode_steps = config.max_running, decode_steps
        self._prefill_tokens = max(config.prefill_tokens, max_tokens)  # scoring takes one piece
        # A sequence may be decoded past its end until the host notices.
        self._row_pages = -(-(max_tokens + decode_steps) // PAGE)
        self._scoring, self._num_rows = num_rows, num_rows
        self._shape = Shape.of(model)
        self.most_scored = max_tokens
        self._allocate(self._affordable(config.memory, max_tokens=max_tokens))
        synchronise(self.device)  # another stream will use these tensors

    def at_home(self) -> AbstractContextManager[object]:
        return own_stream(self.device)

    def spare(self) -> PreTrainedModel:
        with current(self.device):
            model = super().spare()
            synchronise(self.device)  # an unfinished copy would overwrite what is installed
        return model

    def _affordable(self, memory: float, *, max_tokens: int) -> int:
        """Pages for rows within the budget, which also has to hold those for scoring and page 0."""
        size = page_bytes(self._shape, dtype=self.dtype)
        beside = 1 + self._row_pages
        most = self._num_rows * self._row_pages
        count = pages_within(memory, total_bytes=memory_of(self.device), page_bytes=size, most=most + beside) - beside
        if count < self._row_pages:
            needed = (self._row_pages + beside) * size / 2**30
            raise ConfigError(
                f"engine.memory is {memory:g}, which holds no sequence of {max_tokens} tokens: at least {needed:.2g} GiB "
                "are needed. Raise it, or lower rollout.max_tokens"
            )
        return count

    def _allocate(self, count: int) -> None:
        """Allocates `count` pages, or half as many where memory is short, and tables: one for each
        cache row, one for scoring, and one of page 0 alone."""
        self.num_pages, self._pool, self._warms = count, graph_pool(), True
        self._passes: dict[str, tuple[Prompter, Decoder]] = {}
        self._table_buffer = StagingBuffer(self.device, tables=((self._num_rows + 2, self._row_pages), torch.int32))
        self._table_buffer.host["tables"][self._scoring] = range(1 + count, 1 + count + self._row_pages)
        self._table_buffer.upload()
        self._tables = self._table_buffer.device["tables"]
        try:
            pages = 1 + count + self._row_pages
            self.pages = PagedCache(self._shape, pages=pages, dtype=self.dtype, device=self.device)
            return
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            cause = error.with_traceback(None)  # its frames hold what was allocated so far
        less = count // 2
        if less < self._row_pages:
            raise ConfigError(
                f"no memory for keys and values on {self.device}: {cause}. Lower engine.memory, rollout.max_tokens or "
                "trainer.microbatch_tokens, or give the trainer a device of its own (devices)"
            ) from cause
        warnings.warn(f"no memory for {count} pages of keys and values; trying {less}", stacklevel=2)
        self._allocate(less)

    def make_pages(self) -> Pages:
        return Pages(count=self.num_pages, tokens=PAGE, num_rows=self._num_rows)

    def shrink(self) -> bool:
        """Half as many pages, all empty; graphs are captured again."""
        less = self.num_pages // 2
        if less < self._row_pages:
            return False
        synchronise(self.device)  # the memory may go to another stream
        del self.pages, self._passes
        empty_cache()
        self._allocate(less)
        return True

    def warm(self) -> bool:
        """Captures one more graph of the current policy; stops when memory runs out."""
        try:
            self._warms = self._warms and any(passes.warm() for passes in self._passes_of(CURRENT))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            self._warms = False
        return self._warms

    def prepare(self, plan: Plan) -> None:
        here = self._table_buffer.host["tables"]
        for row, pages in plan.tables.items():
            here[row, : len(pages)], here[row, len(pages) :] = pages, 0
        if plan.tables:
            self._table_buffer.upload()
            for _, decoder in self._passes.values():
                decoder.tables_changed = True
        for copies in at_once(plan.copies):
            pairs = [pair for source, target in copies for pair in zip(source.pages, target.pages, strict=True)]
            sources, targets = placed(torch.tensor(pairs), self.device).t()
            self.pages.copy(sources, targets)

    def clear(self, held: Span) -> None:
        self.pages.clear(placed(torch.tensor(held.pages, dtype=torch.long), self.device))

    def install(self, policy: str, tensors: Mapping[str, Tensor]) -> None:
        super().install(policy, tensors)
        # a trainer on another stream may drop `tensors` now; and load_s counts copies, not launches
        synchronise(self.device)

    def launch(self, planned: Pass) -> Collect:
        prompter, decoder = self._passes_of(planned.policy)
        return (prompter if planned.steps == 1 else decoder).launch(planned.chunks)

    def _logits(self, ids: Sequence[int], *, policy: str) -> Tensor:
        prompter, _ = self._passes_of(policy)
        return prompter.score(ids, row=self._scoring)

    def _passes_of(self, policy: str) -> tuple[Prompter, Decoder]:
        if policy not in self._passes:
            model = self.model(policy)

            def forward(ids: Tensor, paged: Paged, keep: Tensor | None) -> Tensor:
                return own_forward(model, ids, place=paged, keep=keep)

            last = LastDrawn(max_batch=self._max_running, max_pieces=self._max_running + 1, device=self.device)
            shared: dict[str, Any] = {"cache": self.pages, "tables": self._tables, "last": last, "pool": self._pool}
            prompter = Prompter(forward, max_tokens=self._prefill_tokens, **shared)
            self._passes[policy] = prompter, Decoder(forward, max_steps=self._decode_steps, **shared)
        return self._passes[policy]


def at_once(copies: Sequence[tuple[Span, Span]]) -> Iterator[list[tuple[Span, Span]]]:
    """The copies in order, split so that no part touches a page that it has already written."""
    part, written = list[tuple[Span, Span]](), set[int]()
    for source, target in copies:
        if not written.isdisjoint((*source.pages, *target.pages)):
            yield part
            part, written = [], set()
        part.append((source, target))
        written.update(target.pages)
    if part:
        yield part


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """With priority: the many small kernels of decoding would wait behind the trainer's."""
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device, priority=-1)):
        yield


def memory_of(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).total_memory


def synchronise(device: torch.device) -> None:
    torch.cuda.current_stream(device).synchronize()


def _replay(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """The logits of `ids` by the engine's path: two pieces of a prompt, then token by token."""
    device = model.device
    cache = PagedCache(Shape.of(model), pages=2, dtype=model.dtype, device=device)
    tables = torch.ones((1, 1), dtype=torch.int32, device=device)
    logits, start = [], 0
    for count in (3, 2, *[1] * (len(ids) - 5)):
        positions = torch.arange(start, start + count, device=device)
        sequences, firsts, ends = torch.tensor(blocks_of([count]), device=device).t().contiguous()
        blocks = (sequences, firsts, ends) if count > 1 else None
        paged = Paged(cache, tables, torch.zeros_like(positions), positions, blocks=blocks)
        logits.append(own_forward(model, ids[start : start + count], place=paged, keep=None))
        start += count
    return torch.cat(logits).float()
