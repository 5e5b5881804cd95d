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

import numpy as np
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


class KeyValueCache:
    """Keys and values by slot, [layers, slots, heads, length, head_dim]. What was never written is zero, never garbage."""

    def __init__(self, shape: Shape, *, slots: int, length: int, dtype: torch.dtype, device: torch.device) -> None:
        self.slots, self.length = (
            slots,
            -(-length // 16) * 16,
        )  # every slot equally aligned: rounding must not depend on the slot
        size = (shape.layers, slots, shape.heads, self.length, shape.head_dim)
        self.keys, self.values = (_zeros(size, dtype=dtype, device=device) for _ in range(2))
        self.call_tokens = CALL_BYTES.get(device.type, CALL_BYTES["cuda"]) // (
            2 * shape.heads * shape.head_dim * dtype.itemsize
        )

    def write(self, layer: int, index: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Stores (tokens, heads, head_dim) at the rows `index` (see `Layout`); returns the layer's keys and values by slot."""
        cached = self.keys[layer], self.values[layer]
        for old, new in zip(cached, (keys, values), strict=True):
            old.view(-1, new.shape[-1]).index_copy_(0, index, new.reshape(-1, new.shape[-1]))
        return cached

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
        decode, self.prefill = pieces[: self.num_decode], pieces[self.num_decode :]
        self.prefill_masks = [self._causal(piece) for piece in self.prefill]
        self.ranges: list[Range] = []
        self.spread: Tensor | None = None
        self.gather: Tensor | None = None
        if decode:
            assert cache is not None, "a piece with a slot needs a cache"
            self.ranges = cover([(piece.slot or 0, piece.end) for piece in decode], call_tokens=cache.call_tokens)
            self._fill_holes(decode)
        self.range_masks = self._range_masks(decode)
        self.positions, self.write_index = self._indices(pieces)

    def _indices(self, pieces: Sequence[Piece]) -> tuple[Tensor, Tensor]:
        """Position of each token, and for each token and head its row of the flat cache [slots * heads * length, head_dim]."""
        starts, counts = np.array([(piece.start, piece.count) for piece in pieces]).T
        positions = np.repeat(starts - counts.cumsum() + counts, counts) + np.arange(counts.sum())
        if self.cache is None:
            return self._tensor(positions), torch.empty(0)
        heads, length = self.cache.keys.shape[2], self.cache.length
        slots = np.repeat(np.array([piece.slot for piece in pieces]), counts)
        rows = (slots[:, None] * heads + np.arange(heads)) * length + positions[:, None]
        return self._tensor(positions), self._tensor(rows.ravel())

    def _fill_holes(self, decode: Sequence[Piece]) -> None:
        """Where ranges have holes: the token that stands in for each of their slots, and where each token's own output is."""
        covered = [slot for r in self.ranges for slot in range(r.first, r.first + r.num)]
        if len(covered) == len(decode):
            return
        token_of = {piece.slot: i for i, piece in enumerate(decode)}
        self.spread = self._tensor(np.array([token_of.get(slot, 0) for slot in covered]))
        self.gather = self._tensor(np.array([i for i, slot in enumerate(covered) if slot in token_of]))

    def _range_masks(self, decode: Sequence[Piece]) -> list[Tensor | None]:
        end_of = {piece.slot: piece.end for piece in decode}
        masks: list[Tensor | None] = []
        for r in self.ranges:
            ends = np.array([end_of.get(slot, 1) for slot in range(r.first, r.first + r.num)])
            hidden = np.arange(r.length) >= ends[:, None]
            masks.append(self._additive(hidden)[:, None, None] if hidden.any() else None)
        return masks

    def _causal(self, piece: Piece) -> Tensor | None:
        if piece.start == 0:
            return None
        return self._additive(np.arange(piece.end) > np.arange(piece.start, piece.end)[:, None])

    def _additive(self, hidden: np.ndarray) -> Tensor:
        mask = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device)
        return mask.masked_fill_(self._tensor(hidden), -math.inf)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device)


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
    **_: Any,
) -> tuple[Tensor, None]:
    """query: (1, heads, tokens, head_dim) -> (1, tokens, heads, head_dim). The names and order of the arguments are Transformers'."""
    query = query[0].transpose(0, 1).unflatten(1, (key.shape[1], -1))  # (tokens, heads, query heads of each, head_dim)
    key, value = key[0].transpose(0, 1), value[0].transpose(0, 1)  # (tokens, heads, head_dim)
    outputs = []
    if layout.cache is not None:
        keys, values = layout.cache.write(int(module.layer_idx), layout.write_index, key, value)  # type: ignore[arg-type]
    if layout.num_decode:
        outputs.append(_decode(query[: layout.num_decode], keys, values, scaling=scaling, layout=layout))
    first = layout.num_decode
    for piece, mask in zip(layout.prefill, layout.prefill_masks, strict=True):
        rows = slice(first, first := first + piece.count)
        if piece.start == 0:  # everything it sees is in this pass
            seen = key[rows].transpose(0, 1), value[rows].transpose(0, 1)
        else:
            seen = keys[piece.slot, :, : piece.end], values[piece.slot, :, : piece.end]
        outputs.append(_prefill(query[rows], *seen, mask=mask, scaling=scaling))
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return output.flatten(1, 2)[None], None


def _decode(query: Tensor, keys: Tensor, values: Tensor, *, scaling: float, layout: Layout) -> Tensor:
    """The query heads that share keys are the rows of one product: nothing is repeated, nothing is copied."""
    if layout.spread is not None:
        query = query.index_select(0, layout.spread)
    outputs, row = [], 0
    for r, mask in zip(layout.ranges, layout.range_masks, strict=True):
        slots = slice(r.first, r.first + r.num)
        seen_keys, seen_values = keys[slots, :, : r.length], values[slots, :, : r.length]
        outputs.append(
            F.scaled_dot_product_attention(
                query[row : row + r.num], seen_keys, seen_values, attn_mask=mask, scale=scaling
            )
        )
        row += r.num
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return output if layout.gather is None else output.index_select(0, layout.gather)


def _prefill(query: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor | None, scaling: float) -> Tensor:
    """query: (tokens, heads, group, head_dim); keys, values: (heads, length, head_dim), seen by each query head of the group."""
    query = query.permute(1, 2, 0, 3)
    keys, values = (x[:, None].expand(-1, query.shape[1], -1, -1) for x in (keys, values))
    output = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, is_causal=mask is None, scale=scaling)
    return output.permute(2, 0, 1, 3)


AttentionInterface.register(
    NAME, attend
)  # no mask function beside it: Transformers then makes no mask, which is what `attend` expects
