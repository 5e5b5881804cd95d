"""The policies of an embedded engine on a GPU: pages instead of slots in a row, graphs for decoding. Same promise as policies.py.

A slot owns a run of pages, so its table never changes; a prefix that another slot holds is copied page by page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ludus.engines.graphs import Decoder, Row
from ludus.engines.noise import Noise
from ludus.engines.policies import Policies, _last_rows, _sampling
from ludus.engines.sample import log_softmax
from ludus.engines.schedule import Copy, Pass, Spill
from ludus.errors import ConfigError, border
from ludus.models import kernels
from ludus.models.cached_attention import Piece, Shape
from ludus.models.fused import fuse, unfuse
from ludus.models.paged_attention import NAME, PAGE, Decoding, PagedCache, Prompting
from ludus.models.served import serve


class CudaPolicies(Policies):
    def __init__(
        self, model: PreTrainedModel, *, num_slots: int, max_tokens: int, max_running: int, steps: int
    ) -> None:
        model.requires_grad_(False)
        self._fused = _serve(model, max_tokens=max_tokens)
        self._take(model)
        self._max_running, self._steps = max_running, steps
        # A sequence may be decoded past its end until the host hears of it.
        each = -(-(max_tokens + steps) // PAGE)
        tables = 1 + torch.arange(num_slots * each, dtype=torch.int32).view(num_slots, each)
        self._tables = torch.cat([tables, torch.zeros((1, each), dtype=torch.int32)]).to(self.device)
        with border(
            ConfigError,
            f"no memory for {num_slots} slots of {max_tokens} tokens; lower engine.max_cached or rollout.max_tokens",
        ):
            pages = 1 + num_slots * each
            self.pages = PagedCache(Shape.of(model), pages=pages, dtype=self.dtype, device=self.device)
        self._pool = torch.cuda.graph_pool_handle()
        self._decoders: dict[str, Decoder] = {}
        self._constants = kernels.noise_constants(self.device)

    def spare(self) -> PreTrainedModel:
        model = super().spare()
        if self._fused:
            fuse(model)
        return model

    def copy(self, planned: Copy) -> None:
        count = -(-planned.count // PAGE)
        self.pages.copy(self._tables[planned.source, :count].long(), self._tables[planned.target, :count].long())

    def clear(self, spill: Spill) -> None:
        self.pages.clear(self._tables[spill.slot].long())

    def run(self, planned: Pass, *, noises: Sequence[Noise]) -> list[list[tuple[int, float]]]:
        if planned.steps == 1:
            return self._prompt(planned, noises)
        rows = [
            Row(chunk.slot, chunk.ids[0], chunk.start, chunk.request.sampling.temperature, noise.origin)
            for chunk, noise in zip(planned.chunks, noises, strict=True)
        ]
        tokens, logprobs = self._decoder(planned.policy).run(rows, steps=planned.steps)
        return [list(zip(*each, strict=True)) for each in zip(tokens, logprobs, strict=True)]

    def _prompt(self, planned: Pass, noises: Sequence[Noise]) -> list[list[tuple[int, float]]]:
        pieces = [Piece(chunk.slot, chunk.start, chunk.count) for chunk in planned.chunks]
        tables = self._tables[[piece.slot for piece in pieces]]
        paged = Prompting(pieces, cache=self.pages, tables=tables, device=self.device)
        ids = torch.tensor([token for chunk in planned.chunks for token in chunk.ids], device=self.device)
        sampling = _sampling(planned)
        keep = torch.tensor(_last_rows(planned.chunks), dtype=torch.long, device=self.device)
        logits = _forward(self._models[planned.policy], ids, paged, keep=keep if len(keep) else keep.new_zeros(1))
        if not sampling:
            return []
        origins = [noise.origin - 2**64 if noise.origin >= 2**63 else noise.origin for noise in noises]
        tokens, logprobs = kernels.draw(
            logits,
            temperatures=torch.tensor([c.request.sampling.temperature for c in sampling], device=self.device),
            origins=torch.tensor(origins, device=self.device),
            positions=torch.tensor([chunk.end - 1 for chunk in sampling], device=self.device),
            constants=self._constants,
        )
        return [[pair] for pair in zip(tokens.tolist(), logprobs.tolist(), strict=True)]

    def score(self, ids: Sequence[int], *, policy: str, temperature: float) -> list[float]:
        packed = torch.tensor(ids, device=self.device)
        paged = Prompting([Piece(None, 0, len(ids))], cache=None, tables=None, device=self.device)
        logits = _forward(self.model(policy), packed, paged)[:-1]
        logprobs = log_softmax(logits, temperatures=[temperature] * len(logits))
        scores: list[float] = logprobs.gather(-1, packed[1:, None])[:, 0].tolist()
        return scores

    def _decoder(self, policy: str) -> Decoder:
        if policy not in self._decoders:
            model = self.model(policy)

            def forward(ids: Tensor, paged: Decoding) -> Tensor:
                return _forward(model, ids, paged)

            self._decoders[policy] = Decoder(
                forward,
                cache=self.pages,
                tables=self._tables,
                max_rows=self._max_running,
                max_steps=self._steps,
                pool=self._pool,
            )
        return self._decoders[policy]


def _serve(model: PreTrainedModel, *, max_tokens: int) -> bool:
    """Fused where that gives the model's own numbers, else as Transformers has it; whether it is fused."""
    fused = False

    def replay(model: PreTrainedModel, ids: Tensor) -> Tensor:
        nonlocal fused
        fused = fuse(model)
        return _replay(model, ids)

    try:
        serve(model, max_tokens=max_tokens, attention=NAME, replay=replay)
    except ConfigError:
        if not fused:
            raise
        unfuse(model)
        serve(model, max_tokens=max_tokens, attention=NAME, replay=_replay)
        return False
    return fused


def _forward(model: PreTrainedModel, ids: Tensor, paged: Any, *, keep: Tensor | None = None) -> Tensor:
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
    cache = PagedCache(Shape.of(model), pages=2, dtype=model.dtype, device=model.device)
    tables = torch.ones((1, 1), dtype=torch.int32, device=model.device)
    rows = torch.zeros(1, dtype=torch.int64, device=model.device)
    logits, start = [], 0
    for count in (3, 2, *[1] * (len(ids) - 5)):
        paged: Decoding | Prompting = Prompting(
            [Piece(0, start, count)], cache=cache, tables=tables, device=model.device
        )
        if count == 1:
            paged = Decoding(cache, tables, rows, rows + start)
        logits.append(_forward(model, ids[start : start + count], paged))
        start += count
    return torch.cat(logits).float()
