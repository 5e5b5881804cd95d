"""The policies of an embedded engine on a GPU: pages instead of slots in a row, graphs for every pass. Same promise as policies.py.

A slot owns a run of pages, so its table never changes; a prefix that another slot holds is copied page by page.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ludus.engines.graphs import Decoder, Piece, Prompter, Row
from ludus.engines.noise import Noise
from ludus.engines.policies import Policies
from ludus.engines.sample import log_softmax
from ludus.engines.schedule import Copy, Pass, Spill
from ludus.errors import ConfigError, border
from ludus.models.cached_attention import Shape
from ludus.models.paged_attention import NAME, PAGE, Paged, PagedCache, blocks_of
from ludus.models.served import serve


class CudaPolicies(Policies):
    def __init__(
        self,
        model: PreTrainedModel,
        *,
        num_slots: int,
        max_tokens: int,
        max_running: int,
        prefill_tokens: int,
        decode_steps: int,
    ) -> None:
        model.requires_grad_(False)
        self._fused = serve(model, max_tokens=max_tokens, attention=NAME, replay=_replay)
        self._take(model)
        self._max_running, self._decode_steps = max_running, decode_steps
        self._prefill_tokens = max(prefill_tokens, max_tokens)  # a prompt that is scored is read whole
        # A sequence may be decoded past its end until the host hears of it. One slot more is for scoring, and one is nobody's.
        each = -(-(max_tokens + decode_steps) // PAGE)
        self._scoring = num_slots
        tables = 1 + torch.arange((num_slots + 1) * each, dtype=torch.int32).view(num_slots + 1, each)
        self._tables = torch.cat([tables, torch.zeros((1, each), dtype=torch.int32)]).to(self.device)
        with border(
            ConfigError,
            f"no memory for {num_slots} slots of {max_tokens} tokens; lower engine.max_cached or rollout.max_tokens",
        ):
            pages = 1 + (num_slots + 1) * each
            self.pages = PagedCache(Shape.of(model), pages=pages, dtype=self.dtype, device=self.device)
        self._pool = torch.cuda.graph_pool_handle()
        self._passes: dict[str, tuple[Prompter, Decoder]] = {}

    def copy(self, planned: Copy) -> None:
        count = -(-planned.count // PAGE)
        self.pages.copy(self._tables[planned.source, :count].long(), self._tables[planned.target, :count].long())

    def clear(self, spill: Spill) -> None:
        self.pages.clear(self._tables[spill.slot].long())

    def run(self, planned: Pass, *, noises: Sequence[Noise]) -> list[list[tuple[int, float]]]:
        prompter, decoder = self._passes_of(planned.policy)
        origins = iter(noises)
        if planned.steps == 1:
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
            return [[pair] for pair in prompter.run(pieces)]
        rows = [
            Row(chunk.slot, chunk.ids[0], chunk.start, chunk.request.sampling.temperature, next(origins).origin)
            for chunk in planned.chunks
        ]
        tokens, logprobs = decoder.run(rows, steps=planned.steps)
        return [list(zip(*each, strict=True)) for each in zip(tokens, logprobs, strict=True)]

    def score(self, ids: Sequence[int], *, policy: str, temperature: float) -> list[float]:
        prompter, _ = self._passes_of(policy)
        logits = prompter.score(ids, slot=self._scoring)[:-1]
        logprobs = log_softmax(logits, temperatures=[temperature] * len(logits))
        scores: list[float] = logprobs.gather(-1, torch.tensor(ids[1:], device=self.device)[:, None])[:, 0].tolist()
        return scores

    def _passes_of(self, policy: str) -> tuple[Prompter, Decoder]:
        if policy not in self._passes:
            model = self.model(policy)

            def forward(ids: Tensor, paged: Paged, keep: Tensor | None) -> Tensor:
                return _forward(model, ids, paged, keep=keep)

            prompter = Prompter(
                forward,
                cache=self.pages,
                tables=self._tables,
                max_tokens=self._prefill_tokens,
                max_pieces=self._max_running + 1,
                pool=self._pool,
            )
            decoder = Decoder(
                forward,
                cache=self.pages,
                tables=self._tables,
                max_rows=self._max_running,
                max_steps=self._decode_steps,
                pool=self._pool,
            )
            self._passes[policy] = (prompter, decoder)
        return self._passes[policy]


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
