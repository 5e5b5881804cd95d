"""Attention over the engine's key-value cache on a CPU, and the plug-in of Transformers' modules
for this cache and the paged one. Promise: a cached continuation equals a plain forward pass.

One pass takes tokens of many sequences side by side: first one token of each sequence that decodes,
then pieces of prompts. `attend` writes new keys and values to the sequences' cache rows; every
token sees its own sequence only. Decoding reads ranges of neighbouring rows in place: copying them
together first costs three times the attention itself.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

NAME = "ludus_cached"
CALL_BYTES = {"cpu": 180_000, "cuda": 20_000_000}
"""Keys and values that can be read in the time of one more attention call; decides the ranges."""
CALL_QUERIES = 12
"""Queries that can attend to those in that time; decides which pieces share a call."""


@dataclass(frozen=True, slots=True)
class Piece:
    """`count` tokens of a sequence from `start` on, which is 0 without a row: nothing is cached."""

    row: int | None
    start: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class Range:
    """Rows first .. first + num - 1, read up to `length` by one attention call."""

    first: int
    num: int
    length: int


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a model's keys and values."""

    layers: int
    heads: int
    head_dim: int
    group: int  # query heads that share one head of keys and values

    @classmethod
    def of(cls, model: PreTrainedModel) -> Shape:
        config = model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        group = config.num_attention_heads // heads
        return cls(layers=config.num_hidden_layers, heads=heads, head_dim=head_dim, group=group)


@dataclass(frozen=True, slots=True)
class Seen:
    """What one attention call reads: views of keys and values by layer, and an additive mask."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class Together:
    """Pieces that share an attention call, padded: (pieces, heads, padded queries, head_dim)."""

    num: int
    rows: Tensor | None  # None: one piece, whose row is read in place
    seen: Seen
    tokens: Tensor  # of the pass, (tokens of these pieces,)
    spread: Tensor | None  # the pass's token at each place of the padded pieces; None: no padding
    gather: Tensor | None  # where among those each of `tokens` is


class KeyValueCache:
    """Keys and values, [layers, rows, heads, length, head_dim]. What was never written is zero."""

    def __init__(self, shape: Shape, *, rows: int, length: int, dtype: torch.dtype, device: torch.device) -> None:
        # all rows equally aligned in memory, so that rounding does not depend on the row
        length = -(-length // 16) * 16
        size = (shape.layers, rows, shape.heads, length, shape.head_dim)
        self.keys, self.values = (_zeros(size, dtype=dtype, device=device) for _ in range(2))
        self.first_places = torch.arange(rows * shape.heads, device=device).view(rows, shape.heads) * length
        """Of each row and head in the flat cache [rows * heads * length, head_dim] of a layer."""
        self._flat = [x.view(shape.layers, -1, shape.head_dim).unbind(0) for x in (self.keys, self.values)]
        self.group = shape.group
        token_bytes = 2 * shape.heads * shape.head_dim * dtype.itemsize
        self.call_tokens = CALL_BYTES.get(device.type, CALL_BYTES["cuda"]) // token_bytes

    def write(self, layer: int, places: Tensor, keys: Tensor, values: Tensor) -> None:
        """(tokens * heads, head_dim) each; number n goes to places[n] of the flat cache."""
        flat_keys, flat_values = self._flat
        flat_keys[layer].index_copy_(0, places, keys)
        flat_values[layer].index_copy_(0, places, values)

    def seen_by_range(self, r: Range, mask: Tensor | None) -> Seen:
        """(rows, heads, length, head_dim)"""
        rows = slice(r.first, r.first + r.num)
        keys, values = (x[:, rows, :, : r.length].unbind(0) for x in (self.keys, self.values))
        return Seen(keys, values, mask)

    def copy(self, source: int, *, target: int, count: int) -> None:
        for cached in (self.keys, self.values):
            cached[:, target, :, :count] = cached[:, source, :, :count]

    def clear(self, row: int, *, count: int) -> None:
        """After NaN: a masked position is still multiplied by 0, and 0 x NaN is NaN."""
        for cached in (self.keys, self.values):
            cached[:, row, :, :count] = 0


def _zeros(size: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    # Anonymous memory is zero and takes no RAM until it is touched.
    memory = mmap.mmap(-1, math.prod(size) * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype).view(size)


class Layout:
    """Where the tokens of one forward pass go and what they see; made once, used by every layer.
    Pieces that decode (one token each, with a row) come first and in row order, then the others."""

    def __init__(
        self, pieces: Sequence[Piece], *, cache: KeyValueCache | None, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.cache, self._dtype, self._device = cache, dtype, device
        prompts = (i for i, piece in enumerate(pieces) if piece.count > 1 or piece.row is None)
        self.num_decode = next(prompts, len(pieces))
        decode, prefill = pieces[: self.num_decode], pieces[self.num_decode :]
        self.positions, self.places = self._places(pieces, one_token_each=not prefill)
        self.decode: list[tuple[int, Seen]] = []
        self.spread: Tensor | None = None
        self.gather: Tensor | None = None
        self.begun: list[slice] = []
        """Tokens of the pieces at position 0, which see nothing but themselves."""
        self.continued: list[Together] = []
        if decode:
            self._see(decode)
        if prefill:
            self._see_pieces(prefill)

    def _places(self, pieces: Sequence[Piece], *, one_token_each: bool) -> tuple[Tensor, Tensor]:
        """Position of each token, (tokens,), and place of each token and head in the flat cache."""
        positions = self._tensor([piece.start for piece in pieces])
        rows = self._tensor([piece.row or 0 for piece in pieces])
        if not one_token_each:
            counts = self._tensor([piece.count for piece in pieces])
            positions = (positions + counts - counts.cumsum(0)).repeat_interleave(counts)
            positions += torch.arange(len(positions), device=self._device)
            rows = rows.repeat_interleave(counts)
        if self.cache is None:
            return positions, positions
        return positions, (self.cache.first_places[rows] + positions[:, None]).flatten()

    def _see(self, decode: Sequence[Piece]) -> None:
        """Cuts the decoding rows into ranges. If these have holes, `spread` names the token that
        stands in for each row, and `gather` where each token's own output is."""
        assert self.cache is not None, "a piece with a row needs a cache"
        end_of = {piece.row or 0: piece.end for piece in decode}
        ranges = cover(end_of.items(), call_tokens=self.cache.call_tokens)
        covered = [range(r.first, r.first + r.num) for r in ranges]
        for r, rows in zip(ranges, covered, strict=True):
            ends = [end_of.get(row, 1) for row in rows]
            mask = None if min(ends) == r.length else self._hide(r.length, ends)[:, None, None]
            self.decode.append((r.num, self.cache.seen_by_range(r, mask)))
        if sum(map(len, covered)) > len(decode):
            token_of = {piece.row: i for i, piece in enumerate(decode)}
            every = [row for rows in covered for row in rows]
            self.spread = self._tensor([token_of.get(row, 0) for row in every])
            self.gather = self._tensor([i for i, row in enumerate(every) if row in token_of])

    def _see_pieces(self, pieces: Sequence[Piece]) -> None:
        first, continued = self.num_decode, []
        for piece in pieces:
            if piece.start:
                continued.append((piece, first))
            else:
                self.begun.append(slice(first, first + piece.count))
            first += piece.count
        if continued:
            assert self.cache is not None, "what precedes a piece is in its row"
            budget = self.cache.call_tokens * CALL_QUERIES
            self.continued = [self._together(each) for each in share_calls(continued, call_pairs=budget)]

    def _together(self, pieces: Sequence[tuple[Piece, int]]) -> Together:
        """`pieces`: each with the index of its first token in the pass."""
        assert self.cache is not None, "what precedes a piece is in its row"
        count, length = max(piece.count for piece, _ in pieces), max(piece.end for piece, _ in pieces)
        ends = [min(piece.start + i, piece.end - 1) + 1 for piece, _ in pieces for i in range(count)]
        mask = self._hide(length, ends).view(len(pieces), 1, count, length)
        mask = mask.repeat_interleave(self.cache.group, dim=2) if self.cache.group > 1 else mask
        rows = [piece.row or 0 for piece, _ in pieces]
        alone = len(pieces) == 1
        read = Range(rows[0], 1, length) if alone else Range(0, len(self.cache.first_places), length)
        seen = self.cache.seen_by_range(read, mask)
        tokens = self._tensor([first + i for piece, first in pieces for i in range(piece.count)])
        spread = gather = None
        if len(tokens) < len(ends):
            spread = self._tensor([first + min(i, piece.count - 1) for piece, first in pieces for i in range(count)])
            gather = self._tensor([n * count + i for n, (piece, _) in enumerate(pieces) for i in range(piece.count)])
        return Together(len(pieces), None if alone else self._tensor(rows), seen, tokens, spread, gather)

    def _hide(self, length: int, ends: Sequence[int]) -> Tensor:
        """An additive mask (len(ends), length) that hides everything from each end on."""
        hidden = torch.arange(length, device=self._device) >= self._tensor(ends)[:, None]
        return torch.zeros(hidden.shape, dtype=self._dtype, device=self._device).masked_fill_(hidden, -math.inf)

    def attended(self, query: Tensor, key: Tensor, value: Tensor, *, layer: int, scaling: float) -> Tensor:
        """(tokens, heads, head_dim) each -> (tokens, query heads, head_dim)."""
        num, heads, head_dim = key.shape
        query = query.reshape(num, heads, -1, head_dim)  # (tokens, heads, group, head_dim)
        if self.cache is not None:
            self.cache.write(layer, self.places, key.reshape(-1, head_dim), value.reshape(-1, head_dim))
        if not self.begun and not self.continued:
            return _decode(query, layer=layer, scaling=scaling, layout=self).reshape(num, -1, head_dim)
        output = torch.empty_like(query)
        if self.decode:
            mine = slice(0, self.num_decode)
            output[mine] = _decode(query[mine], layer=layer, scaling=scaling, layout=self)
        for tokens in self.begun:
            output[tokens] = _begin(query[tokens], key[tokens], value[tokens], scaling=scaling)
        for pieces in self.continued:
            output.index_copy_(0, pieces.tokens, _continue(query, pieces, layer=layer, scaling=scaling))
        return output.reshape(num, -1, head_dim)

    def _tensor(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, device=self._device)


def share_calls(pieces: Iterable[tuple[Piece, int]], *, call_pairs: int) -> list[list[tuple[Piece, int]]]:
    """Groups similar pieces while padding, in pairs of query and key, costs less than a call."""
    calls: list[list[tuple[Piece, int]]] = []
    cost = end = 0
    for piece, first in sorted(pieces, key=lambda each: (each[0].count, each[0].end)):
        longer = max(end, piece.end)
        padded = (len(calls[-1]) + 1) * piece.count * longer if calls else 0
        if calls and padded - cost <= call_pairs + piece.count * piece.end:
            calls[-1].append((piece, first))
            cost, end = padded, longer
        else:
            calls.append([(piece, first)])
            cost, end = piece.count * piece.end, piece.end
    return calls


def cover(decoding: Iterable[tuple[int, int]], *, call_tokens: int) -> list[Range]:
    """Ranges over (row, length), in row order; includes holes that cost less than a call."""
    ranges: list[Range] = []
    for row, length in decoding:
        if ranges:
            last = ranges[-1]
            wider = Range(last.first, row - last.first + 1, max(last.length, length))
            if wider.num * wider.length - last.num * last.length <= call_tokens + length:
                ranges[-1] = wider
                continue
        ranges.append(Range(row, 1, length))
    return ranges


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, scaling: float, place: Any, **__: Any
) -> tuple[Tensor, None]:
    """(1, heads, tokens, head_dim) -> (1, tokens, heads, head_dim), as Transformers calls it.
    `place`, a Layout or a Paged, knows where keys and values go and what each token sees."""
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    if value.is_cuda:  # as the kernels of paged.py take them
        query, key, value = (x.contiguous().to(value.dtype) for x in (query, key, value))
    return place.attended(query, key, value, layer=module.layer_idx, scaling=scaling)[None], None


def _decode(query: Tensor, *, layer: int, scaling: float, layout: Layout) -> Tensor:
    """Query heads that share keys are the rows of one product: nothing is repeated or copied."""
    if layout.spread is not None:
        query = query.index_select(0, layout.spread)
    queries = query.split([num for num, _ in layout.decode]) if len(layout.decode) > 1 else [query]
    outputs = [
        F.scaled_dot_product_attention(q, seen.keys[layer], seen.values[layer], attn_mask=seen.mask, scale=scaling)
        for q, (_, seen) in zip(queries, layout.decode, strict=True)
    ]
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return output if layout.gather is None else output.index_select(0, layout.gather)


def _begin(query: Tensor, keys: Tensor, values: Tensor, *, scaling: float) -> Tensor:
    """query: (tokens, heads, group, head_dim); keys, values: (tokens, heads, head_dim)."""
    query = query.permute(1, 2, 0, 3)
    keys, values = (x.transpose(0, 1)[:, None].expand(-1, query.shape[1], -1, -1) for x in (keys, values))
    output = F.scaled_dot_product_attention(query, keys, values, is_causal=True, scale=scaling)
    return output.permute(2, 0, 1, 3)


def _continue(query: Tensor, pieces: Together, *, layer: int, scaling: float) -> Tensor:
    """As in `_decode`, query heads that share keys are rows of one product. Keys and values of
    several rows are copied together: many queries read each."""
    _, heads, group, head_dim = query.shape
    query = query.index_select(0, pieces.tokens if pieces.spread is None else pieces.spread)
    # (pieces, heads, queries, group, head_dim)
    query = query.view(pieces.num, -1, heads, group, head_dim).transpose(1, 2)
    keys, values = pieces.seen.keys[layer], pieces.seen.values[layer]
    if pieces.rows is not None:
        keys, values = (x.index_select(0, pieces.rows) for x in (keys, values))
    queries = query.reshape(pieces.num, heads, -1, head_dim)
    output = F.scaled_dot_product_attention(queries, keys, values, attn_mask=pieces.seen.mask, scale=scaling)
    output = output.view(pieces.num, heads, -1, group, head_dim).transpose(1, 2).reshape(-1, heads, group, head_dim)
    return output if pieces.gather is None else output.index_select(0, pieces.gather)


# Without a mask function beside it Transformers makes no mask, as `attend` expects.
AttentionInterface.register(NAME, attend)
