"""The attention our engine plugs into Transformers' own modules. Promise: a cached continuation equals a plain full forward.

One forward pass takes the tokens of many sequences packed into one row: first one token each of the sequences that decode, then pieces of
prompts. `attend` writes the new keys and values into the sequences' slots and lets every token see its own sequence only. Decoding
reads the slots in place, a range of neighbouring slots at a time: copying them together first costs three times the attention itself.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

NAME = "ludus_cached"
CALL_BYTES = {"cpu": 180_000, "cuda": 20_000_000}
"""Keys and values that could be read in the time one more attention call takes; decides how ranges are cut."""


@dataclass(frozen=True, slots=True)
class Piece:
    """`count` tokens of one sequence, from position `start` on. Without a slot nothing is kept, and `start` is 0."""

    slot: int | None
    start: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class Range:
    """Slots first .. first + num - 1, read up to `length`: one attention call for all sequences that decode in them."""

    first: int
    num: int
    length: int


@dataclass(frozen=True, slots=True)
class Shape:
    """What a slot must hold."""

    layers: int
    heads: int
    head_dim: int

    @classmethod
    def of(cls, model: PreTrainedModel) -> Shape:
        config = model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(layers=config.num_hidden_layers, heads=heads, head_dim=head_dim)


@dataclass(frozen=True, slots=True)
class Seen:
    """What one attention call reads of the cache: views of keys and values, one for each layer, and an additive mask."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    mask: Tensor | None


class KeyValueCache:
    """Keys and values by slot, [layers, slots, heads, length, head_dim]. What was never written is zero, never garbage."""

    def __init__(self, shape: Shape, *, slots: int, length: int, dtype: torch.dtype, device: torch.device) -> None:
        length = (
            -(-length // 16) * 16
        )  # all slots equally aligned in memory, so that rounding does not depend on the slot
        size = (shape.layers, slots, shape.heads, length, shape.head_dim)
        self.keys, self.values = (_zeros(size, dtype=dtype, device=device) for _ in range(2))
        self.first_rows = torch.arange(slots * shape.heads, device=device).view(slots, shape.heads) * length
        """Of each slot and head, in the flat cache [slots * heads * length, head_dim] of a layer."""
        self._flat = [x.view(shape.layers, -1, shape.head_dim).unbind(0) for x in (self.keys, self.values)]
        token_bytes = 2 * shape.heads * shape.head_dim * dtype.itemsize
        self.call_tokens = CALL_BYTES.get(device.type, CALL_BYTES["cuda"]) // token_bytes

    def write(self, layer: int, rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """keys, values: (tokens * heads, head_dim), of which number n goes to row rows[n] of the flat cache."""
        flat_keys, flat_values = self._flat
        flat_keys[layer].index_copy_(0, rows, keys)
        flat_values[layer].index_copy_(0, rows, values)

    def seen_by_range(self, r: Range, mask: Tensor | None) -> Seen:
        """(slots, heads, length, head_dim)"""
        slots = slice(r.first, r.first + r.num)
        keys, values = (x[:, slots, :, : r.length].unbind(0) for x in (self.keys, self.values))
        return Seen(keys, values, mask)

    def seen_by_piece(self, piece: Piece, mask: Tensor) -> Seen:
        """(heads, length, head_dim)"""
        keys, values = (x[:, piece.slot, :, : piece.end].unbind(0) for x in (self.keys, self.values))
        return Seen(keys, values, mask)

    def copy(self, source: int, *, target: int, count: int) -> None:
        for cached in (self.keys, self.values):
            cached[:, target, :, :count] = cached[:, source, :, :count]

    def clear(self, slot: int, *, count: int) -> None:
        """After a sequence with NaN: a masked position still multiplies what is stored there by 0, and 0 x NaN is NaN."""
        for cached in (self.keys, self.values):
            cached[:, slot, :, :count] = 0


def _zeros(size: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    # Anonymous memory is zero and costs nothing until it is touched: slots that are never used take no RAM.
    memory = mmap.mmap(-1, math.prod(size) * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype).view(size)


class Layout:
    """Where the tokens of one forward pass go and what they see; made once per pass, used by every layer.

    The pieces that decode (one token each, in a slot) come first and in slot order, the others after them.
    """

    def __init__(
        self, pieces: Sequence[Piece], *, cache: KeyValueCache | None, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.cache, self._dtype, self._device = cache, dtype, device
        prompts = (i for i, piece in enumerate(pieces) if piece.count > 1 or piece.slot is None)
        self.num_decode = next(prompts, len(pieces))
        decode, prefill = pieces[: self.num_decode], pieces[self.num_decode :]
        self.positions, self.rows = self._places(pieces, one_token_each=not prefill)
        self.prefill = [(piece, self._seen_by_piece(piece)) for piece in prefill]
        self.decode: list[tuple[int, Seen]] = []
        self.spread: Tensor | None = None
        self.gather: Tensor | None = None
        if decode:
            self._see(decode)

    def _places(self, pieces: Sequence[Piece], *, one_token_each: bool) -> tuple[Tensor, Tensor]:
        """Position of each token, (tokens,), and rows of the flat cache for each token and head, (tokens * heads,)."""
        positions = self._tensor([piece.start for piece in pieces])
        slots = self._tensor([piece.slot or 0 for piece in pieces])
        if not one_token_each:
            counts = self._tensor([piece.count for piece in pieces])
            positions = (positions + counts - counts.cumsum(0)).repeat_interleave(counts)
            positions += torch.arange(len(positions), device=self._device)
            slots = slots.repeat_interleave(counts)
        if self.cache is None:
            return positions, positions
        return positions, (self.cache.first_rows[slots] + positions[:, None]).flatten()

    def _see(self, decode: Sequence[Piece]) -> None:
        """Cuts the decoding slots into ranges. Where those have holes, `spread` names the token that stands in for each slot of the
        ranges, and `gather` where each token's own output is."""
        assert self.cache is not None, "a piece with a slot needs a cache"
        end_of = {piece.slot or 0: piece.end for piece in decode}
        ranges = cover(end_of.items(), call_tokens=self.cache.call_tokens)
        covered = [range(r.first, r.first + r.num) for r in ranges]
        for r, slots in zip(ranges, covered, strict=True):
            ends = [end_of.get(slot, 1) for slot in slots]
            mask = None if min(ends) == r.length else self._hide(r.length, ends)[:, None, None]
            self.decode.append((r.num, self.cache.seen_by_range(r, mask)))
        if sum(map(len, covered)) > len(decode):
            token_of = {piece.slot: i for i, piece in enumerate(decode)}
            every = [slot for slots in covered for slot in slots]
            self.spread = self._tensor([token_of.get(slot, 0) for slot in every])
            self.gather = self._tensor([i for i, slot in enumerate(every) if slot in token_of])

    def _seen_by_piece(self, piece: Piece) -> Seen | None:
        """None: everything the piece sees is in this pass."""
        if piece.start == 0:
            return None
        assert self.cache is not None, "what precedes a piece is in its slot"
        return self.cache.seen_by_piece(piece, self._hide(piece.end, range(piece.start + 1, piece.end + 1)))

    def _hide(self, length: int, ends: Sequence[int]) -> Tensor:
        """An additive mask (len(ends), length) that hides what lies at or beyond each end."""
        hidden = torch.arange(length, device=self._device) >= self._tensor(ends)[:, None]
        return torch.zeros(hidden.shape, dtype=self._dtype, device=self._device).masked_fill_(hidden, -math.inf)

    def attended(self, query: Tensor, key: Tensor, value: Tensor, *, layer: int, scaling: float) -> Tensor:
        """(tokens, heads, head_dim) each -> (tokens, query heads, head_dim)."""
        num, heads, head_dim = key.shape
        query = query.reshape(num, heads, -1, head_dim)  # (tokens, heads, query heads of each, head_dim)
        if self.cache is not None:
            self.cache.write(layer, self.rows, key.reshape(-1, head_dim), value.reshape(-1, head_dim))
        if not self.prefill:
            return _decode(query, layer=layer, scaling=scaling, layout=self).reshape(num, -1, head_dim)
        outputs = [_decode(query[: self.num_decode], layer=layer, scaling=scaling, layout=self)] if self.decode else []
        first = self.num_decode
        for piece, seen in self.prefill:
            rows = slice(first, first := first + piece.count)
            if seen is None:
                keys, values, mask = key[rows].transpose(0, 1), value[rows].transpose(0, 1), None
            else:
                keys, values, mask = seen.keys[layer], seen.values[layer], seen.mask
            outputs.append(_prefill(query[rows], keys, values, mask=mask, scaling=scaling))
        return torch.cat(outputs).reshape(num, -1, head_dim)

    def _tensor(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, device=self._device)


def cover(decoding: Iterable[tuple[int, int]], *, call_tokens: int) -> list[Range]:
    """Ranges over (slot, length), given in slot order. A hole or a longer neighbour is taken in while it costs less than one more call."""
    ranges: list[Range] = []
    for slot, length in decoding:
        if ranges:
            last = ranges[-1]
            wider = Range(last.first, slot - last.first + 1, max(last.length, length))
            if wider.num * wider.length - last.num * last.length <= call_tokens + length:
                ranges[-1] = wider
                continue
        ranges.append(Range(slot, 1, length))
    return ranges


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    layout: Layout,
    **unused: Any,
) -> tuple[Tensor, None]:
    """query: (1, heads, tokens, head_dim) -> (1, tokens, heads, head_dim). The names and order of the arguments are Transformers'."""
    layer: int = module.layer_idx  # type: ignore[assignment]
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    return layout.attended(query, key, value, layer=layer, scaling=scaling)[None], None


def _decode(query: Tensor, *, layer: int, scaling: float, layout: Layout) -> Tensor:
    """The query heads that share keys are the rows of one product: nothing is repeated, nothing is copied."""
    if layout.spread is not None:
        query = query.index_select(0, layout.spread)
    queries = query.split([num for num, _ in layout.decode]) if len(layout.decode) > 1 else [query]
    outputs = [
        F.scaled_dot_product_attention(q, seen.keys[layer], seen.values[layer], attn_mask=seen.mask, scale=scaling)
        for q, (_, seen) in zip(queries, layout.decode, strict=True)
    ]
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return output if layout.gather is None else output.index_select(0, layout.gather)


def _prefill(query: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor | None, scaling: float) -> Tensor:
    """query: (tokens, heads, group, head_dim); keys, values: (heads, length, head_dim), seen by each query head of the group."""
    query = query.permute(1, 2, 0, 3)
    keys, values = (x[:, None].expand(-1, query.shape[1], -1, -1) for x in (keys, values))
    output = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, is_causal=mask is None, scale=scaling)
    return output.permute(2, 0, 1, 3)


# No mask function beside it: Transformers then makes no mask, which is what `attend` expects.
AttentionInterface.register(NAME, attend)
