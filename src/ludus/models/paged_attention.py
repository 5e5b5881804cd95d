"""The attention our engine plugs into Transformers' modules on a GPU. Promise: a cached continuation equals a plain full forward.

Keys and values live in pages of 64 tokens; a table lists the pages of each sequence. One forward pass takes either one token each of
many sequences, whose attention is one kernel over the pages and can be captured in a CUDA graph, or pieces of prompts, which see what
precedes them gathered from the pages. Page 0 belongs to nobody: rows that only fill up a batch write there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from ludus.models import kernels
from ludus.models.cached_attention import Piece, Shape

NAME = "ludus_paged"
PAGE = 64
"""Tokens of a page: what one program of the attention kernel reads at a time."""


class PagedCache:
    """Keys and values by layer, each [pages, heads, PAGE, head_dim]. What was never written is zero, never garbage."""

    def __init__(self, shape: Shape, *, pages: int, dtype: torch.dtype, device: torch.device) -> None:
        size = (pages, shape.heads, PAGE, shape.head_dim)

        def zeros() -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        self.layers = [(zeros(), zeros()) for _ in range(shape.layers)]

    def copy(self, sources: Tensor, targets: Tensor) -> None:
        """Whole pages, in all layers."""
        for layer in self.layers:
            for cached in layer:
                cached[targets] = cached[sources]

    def clear(self, pages: Tensor) -> None:
        for layer in self.layers:
            for cached in layer:
                cached[pages] = 0


@dataclass(frozen=True, slots=True)
class Decoding:
    """One token each of several sequences: token n is at positions[n] of the sequence whose pages are tables[n]."""

    cache: PagedCache
    tables: Tensor  # int32 (sequences, pages of each)
    rows: Tensor  # int64 (sequences,): 0, 1, 2, ...
    positions: Tensor  # int64 (sequences,)


class Prompting:
    """Pieces of several sequences side by side; piece n is of the sequence whose pages are tables[n]. Without a cache nothing is kept."""

    def __init__(
        self, pieces: Sequence[Piece], *, cache: PagedCache | None, tables: Tensor | None, device: torch.device
    ) -> None:
        counts, ends = [piece.count for piece in pieces], [piece.end for piece in pieces]
        self.cache, self.tables = cache, tables
        self.counts, self.ends = counts, ends
        self.rows, self.positions = _enumerated([piece.start for piece in pieces], ends, device=device)
        self.bounds = torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device=device)
        self.seen_bounds = torch.tensor([0, *accumulate(ends)], dtype=torch.int32, device=device)
        self.places: tuple[Tensor, Tensor] | None = None
        if any(piece.start for piece in pieces):
            assert tables is not None, "what precedes a piece is in its pages"
            rows, positions = _enumerated([0] * len(pieces), ends, device=device)
            self.places = (tables[rows, positions // PAGE].long(), positions % PAGE)

    def seen(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (tokens, heads, head_dim) of all that the pieces see: their own, or from the pages."""
        if self.places is None or self.cache is None:
            return key.contiguous(), value.contiguous()
        pages, offsets = self.places
        keys, values = self.cache.layers[layer]
        return keys[pages, :, offsets], values[pages, :, offsets]


def _enumerated(starts: Sequence[int], ends: Sequence[int], *, device: torch.device) -> tuple[Tensor, Tensor]:
    """For every token of the pieces its piece and its position."""
    counts = np.subtract(ends, starts)
    rows = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    positions = np.arange(len(rows)) - np.repeat(first - np.asarray(starts), counts)
    both = torch.from_numpy(np.stack([rows, positions])).to(device)
    return both[0], both[1]


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    paged: Decoding | Prompting,
    **unused: Any,
) -> tuple[Tensor, None]:
    """query: (1, heads, tokens, head_dim) -> (1, tokens, heads, head_dim). The names and order of the arguments are Transformers'."""
    layer: int = module.layer_idx  # type: ignore[assignment]
    query, key, value = (x[0].transpose(0, 1).contiguous().to(value.dtype) for x in (query, key, value))
    _write(key, value, paged=paged, layer=layer)
    return _seen(query, key, value, paged=paged, layer=layer, scaling=scaling).unsqueeze(0), None


def attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    paged: Decoding | Prompting,
    layer: int,
    scaling: float,
) -> Tensor:
    """The same from (tokens, heads, head_dim) before the rotary embedding, to (tokens, heads, head_dim)."""
    query, key = kernels.rotate(query, cos, sin), kernels.rotate(key, cos, sin)
    _write(key, value, paged=paged, layer=layer)
    return _seen(query, key, value, paged=paged, layer=layer, scaling=scaling)


def _write(key: Tensor, value: Tensor, *, paged: Decoding | Prompting, layer: int) -> None:
    if paged.cache is None:
        return
    assert paged.tables is not None, "a cache is written by table"
    kernels.write(
        key, value, into=paged.cache.layers[layer], tables=paged.tables, rows=paged.rows, positions=paged.positions
    )


def _seen(
    query: Tensor, key: Tensor, value: Tensor, *, paged: Decoding | Prompting, layer: int, scaling: float
) -> Tensor:
    if isinstance(paged, Decoding):
        cached = paged.cache.layers[layer]
        return kernels.decode(query, cached=cached, tables=paged.tables, positions=paged.positions, scale=scaling)
    keys, values = paged.seen(layer, key, value)
    each = _prompt if value.dtype != torch.float32 else _prompt_in_float32
    return each(query, keys, values, paged, scaling)


def _prompt(query: Tensor, keys: Tensor, values: Tensor, paged: Prompting, scaling: float) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    times = query.shape[1] // keys.shape[1]  # torch 2.11's kernel does not take fewer key-value heads
    keys, values = (x.repeat_interleave(times, dim=1) if times > 1 else x for x in (keys, values))
    longest, longest_seen = max(paged.counts), max(paged.ends)
    out = varlen_attn(
        query, keys, values, paged.bounds, paged.seen_bounds, longest, longest_seen, scale=scaling, window_size=(-1, 0)
    )
    assert isinstance(out, Tensor)
    return out


def _prompt_in_float32(query: Tensor, keys: Tensor, values: Tensor, paged: Prompting, scaling: float) -> Tensor:
    """One call per piece: the fused kernel knows half precision only, and float32 is for comparing."""
    outputs = []
    pieces = zip(query.split(paged.counts), keys.split(paged.ends), values.split(paged.ends), strict=True)
    for q, k, v in pieces:
        count, end = len(q), len(k)
        hidden = torch.ones(count, end, dtype=torch.bool, device=q.device).tril(end - count)
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        out = F.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=hidden, scale=scaling, enable_gqa=q.shape[0] != k.shape[0]
        )
        outputs.append(out[0].transpose(0, 1))
    return torch.cat(outputs)


# No mask function beside it: Transformers then makes no mask, which is what `attend` expects.
AttentionInterface.register(NAME, attend)
