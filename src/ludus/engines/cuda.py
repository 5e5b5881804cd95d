"""The policies of an embedded engine on a GPU: pages instead of slots in a row, graphs for every pass. Same promise as policies.py.

The pool of pages is allocated once and never moves, and neither do the tables that say whose they are: graphs stay valid while pages
change hands between two passes. A table may name pages that others name too: what sequences have in common is there once.

The engine's thread has a stream of its own, so that generating and training overlap on one device; everybody else, the trainer included,
is on the default one. Whatever crosses from one to the other is waited for, by the host, where it leaves: weights when they are published
(their checksums are read) and when they are loaded, and all that is made before the thread starts.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ludus.engines.graphs import Decoder, LastDrawn, Piece, Prompter, Row
from ludus.engines.noise import Noise
from ludus.engines.pages import Pages, pages_within
from ludus.engines.plan import Copy, Landing, Pass, Plan, Spill
from ludus.engines.policies import Policies
from ludus.engines.sample import log_softmax
from ludus.engines.staging import Packed
from ludus.errors import ConfigError
from ludus.models.attention.cached import Shape
from ludus.models.attention.paged import NAME, PAGE, Paged, PagedCache, blocks_of, page_bytes
from ludus.models.faults import is_out_of_memory
from ludus.models.serving import serve
from ludus.models.transfer import fetched, placed
from ludus.types import CURRENT


class CudaPolicies(Policies):
    overlaps = True

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        num_slots: int,
        max_tokens: int,
        max_running: int,
        prefill_tokens: int,
        decode_steps: int,
        memory: float,
    ) -> None:
        """`memory`: for keys and values, as in engine.memory."""
        model.requires_grad_(False)
        with current(model.device):  # whoever makes an engine may be at home on the trainer's device
            self._fused = serve(model, max_tokens=max_tokens, attention=NAME, replay=_replay)
        self._take(model)
        self._max_running, self._decode_steps = max_running, decode_steps
        self._prefill_tokens = max(prefill_tokens, max_tokens)  # a prompt that is scored is read whole
        # A sequence may be decoded past its end until the host hears of it.
        self._each = -(-(max_tokens + decode_steps) // PAGE)
        self._scoring, self._num_slots = num_slots, num_slots
        self._shape = Shape.of(model)
        self.most_scored = max_tokens
        self._allocate(self._affordable(memory, max_tokens=max_tokens))
        synchronise(self.device)  # what was made here is used on another stream

    def at_home(self) -> AbstractContextManager[object]:
        """The device, and a stream of its own: see the module."""
        return own_stream(self.device)

    def spare(self) -> PreTrainedModel:
        with current(self.device):
            model = super().spare()
            synchronise(self.device)  # as above: a copy that is still under way would overwrite what is installed
        return model

    # -------------------------------------------------------------------------------------------- memory

    def _affordable(self, memory: float, *, max_tokens: int) -> int:
        """Pages for slots that the budget holds, beside those for scoring and the one that is nobody's."""
        size = page_bytes(self._shape, dtype=self.dtype)
        beside = 1 + self._each
        most = self._num_slots * self._each
        count = pages_within(memory, total_bytes=memory_of(self.device), page_bytes=size, most=most + beside) - beside
        if count < self._each:
            needed = (self._each + beside) * size / 2**30
            raise ConfigError(
                f"engine.memory is {memory:g}, which holds no sequence of {max_tokens} tokens: at least {needed:.2g} GiB are needed. Raise "
                "it, or lower rollout.max_tokens"
            )
        return count

    def _allocate(self, count: int) -> None:
        """Tables: a row for every slot, one for scoring, and one of nobody's pages. Half as many pages where the memory is not there."""
        self.num_pages, self._pool, self._warms = count, graph_pool(), True
        self._passes: dict[str, tuple[Prompter, Decoder]] = {}
        self._packed = Packed(self.device, tables=((self._num_slots + 2, self._each), torch.int32))
        self._packed.host["tables"][self._scoring] = range(1 + count, 1 + count + self._each)
        self._packed.bring()
        self._tables = self._packed.device["tables"]
        try:
            pages = 1 + count + self._each
            self.pages = PagedCache(self._shape, pages=pages, dtype=self.dtype, device=self.device)
            return
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            cause = error.with_traceback(None)  # its frames hold the half that was had
        less = count // 2
        if less < self._each:
            raise ConfigError(
                f"no memory for keys and values on {self.device}: {cause}. Lower engine.memory, rollout.max_tokens or "
                "trainer.microbatch_tokens, or give the trainer a device of its own (devices)"
            ) from cause
        warnings.warn(f"no memory for {count} pages of keys and values; trying {less}", stacklevel=2)
        self._allocate(less)

    def make_pages(self) -> Pages:
        return Pages(count=self.num_pages, tokens=PAGE, num_slots=self._num_slots)

    def shrink(self) -> bool:
        """Half as many pages, all empty, and no graph is left."""
        less = self.num_pages // 2
        if less < self._each:
            return False
        synchronise(self.device)  # the memory may go to another stream
        del self.pages, self._passes
        empty_cache()
        self._allocate(less)
        return True

    def warm(self) -> bool:
        """One more of the graphs that the current policy may need; where there is no memory for it, it waits until it is needed."""
        try:
            self._warms = self._warms and any(passes.warm() for passes in self._passes_of(CURRENT))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            self._warms = False
        return self._warms

    def prepare(self, plan: Plan) -> None:
        if plan.tables:
            self._place(plan.tables)
        for copies in at_once(plan.copies):
            pairs = [
                (source, target)
                for each in copies
                for source, target in zip(each.source_pages, each.target_pages, strict=True)
            ]
            sources, targets = placed(torch.tensor(pairs), self.device).t()
            self.pages.copy(sources, targets)

    def _place(self, tables: Mapping[int, Sequence[int]]) -> None:
        here = self._packed.host["tables"]
        for slot, pages in tables.items():
            here[slot, : len(pages)], here[slot, len(pages) :] = pages, 0
        self._packed.bring()
        for _, decoder in self._passes.values():
            decoder.moved = True

    def clear(self, spill: Spill) -> None:
        self.pages.clear(placed(torch.tensor(spill.pages, dtype=torch.long), self.device))

    def install(self, policy: str, tensors: Mapping[str, Tensor]) -> None:
        super().install(policy, tensors)
        # `tensors` may be dropped now, by a trainer on another stream; and whoever measures a load measures the copies, not their launch
        synchronise(self.device)

    # -------------------------------------------------------------------------------------------- passes

    def launch(self, planned: Pass, *, noises: Sequence[Noise]) -> Landing:
        prompter, decoder = self._passes_of(planned.policy)
        if planned.steps == 1:
            origins = iter(noises)
            pieces = [
                Piece(
                    slot=chunk.slot,
                    start=chunk.start,
                    ids=chunk.ids,
                    draws=chunk.samples,
                    temperature=chunk.request.sampling.temperature,
                    origin=next(origins).origin if chunk.samples else 0,
                )
                for chunk in planned.chunks
            ]
            return prompter.launch(pieces)
        rows = [
            Row(chunk.slot, chunk.ids[0], chunk.start, chunk.request.sampling.temperature, noise.origin)
            for chunk, noise in zip(planned.chunks, noises, strict=True)
        ]
        return decoder.launch(rows, steps=planned.steps)

    def score(self, ids: Sequence[int], *, policy: str, temperature: float) -> list[float]:
        prompter, _ = self._passes_of(policy)
        logits = prompter.score(ids, slot=self._scoring)[:-1]
        logprobs = log_softmax(logits, temperatures=[temperature] * len(logits))
        chosen = logprobs.gather(-1, placed(torch.tensor(ids[1:]), self.device)[:, None])[:, 0]
        scores: list[float] = fetched(chosen).tolist()
        return scores

    def _passes_of(self, policy: str) -> tuple[Prompter, Decoder]:
        if policy not in self._passes:
            model = self.model(policy)

            def forward(ids: Tensor, paged: Paged, keep: Tensor | None) -> Tensor:
                return _forward(model, ids, paged, keep=keep)

            last = LastDrawn(max_rows=self._max_running, max_pieces=self._max_running + 1, device=self.device)
            prompter = Prompter(
                forward,
                cache=self.pages,
                tables=self._tables,
                last=last,
                max_tokens=self._prefill_tokens,
                pool=self._pool,
            )
            decoder = Decoder(
                forward,
                cache=self.pages,
                tables=self._tables,
                last=last,
                max_steps=self._decode_steps,
                pool=self._pool,
            )
            self._passes[policy] = (prompter, decoder)
        return self._passes[policy]


def at_once(copies: Sequence[Copy]) -> Iterator[list[Copy]]:
    """The copies in their order, in parts within which none reads or writes a page that an earlier one has written."""
    part, written = list[Copy](), set[int]()
    for each in copies:
        if not written.isdisjoint((*each.source_pages, *each.target_pages)):
            yield part
            part, written = [], set()
        part.append(each)
        written.update(each.target_pages)
    if part:
        yield part


def current(device: torch.device) -> AbstractContextManager[object]:
    return torch.cuda.device(device)


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Before the trainer's: the kernels of a decode step are small and many, and would each wait behind a large one."""
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device, priority=-1)):
        yield


def graph_pool() -> object:
    return torch.cuda.graph_pool_handle()


def memory_of(device: torch.device) -> int:
    """Bytes of the whole device."""
    return torch.cuda.get_device_properties(device).total_memory


def synchronise(device: torch.device) -> None:
    torch.cuda.current_stream(device).synchronize()


def empty_cache() -> None:
    torch.cuda.empty_cache()


def _forward(model: PreTrainedModel, ids: Tensor, paged: Paged, *, keep: Tensor | None = None) -> Tensor:
    output = model(
        input_ids=ids[None],
        position_ids=paged.positions[None],
        use_cache=False,
        logits_to_keep=0 if keep is None else keep,
        paged=paged,
    )
    logits: Tensor = output.logits[0]
    return logits


def _replay(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """The logits of `ids` by the engine's path: a first piece, a second one that sees the first, then token by token."""
    device = model.device
    cache = PagedCache(Shape.of(model), pages=2, dtype=model.dtype, device=device)
    tables = torch.ones((1, 1), dtype=torch.int32, device=device)
    logits, start = [], 0
    for count in (3, 2, *[1] * (len(ids) - 5)):
        positions = torch.arange(start, start + count, device=device)
        sequences, firsts, ends = torch.tensor(blocks_of([count]), device=device).t().contiguous()
        blocks = (sequences, firsts, ends) if count > 1 else None
        paged = Paged(cache, tables, torch.zeros_like(positions), positions, blocks=blocks)
        logits.append(_forward(model, ids[start : start + count], paged))
        start += count
    return torch.cat(logits).float()
