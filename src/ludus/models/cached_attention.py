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

from ludus.errors import ConfigError, border

NAME = "ludus_cached"
CALL_TOKENS = 384
"""What one more attention call costs, in tokens attended to; measured on a CPU, where it decides how ranges are cut."""


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
    """Where the tokens of one forward pass go and what they see; made once per pass, used by every layer."""

    def __init__(
        self, pieces: Sequence[Piece], *, cache: KeyValueCache | None, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.pieces, self.cache = pieces, cache
        self._dtype, self._device = dtype, device
        self.num_decode = next(
            (i for i, piece in enumerate(pieces) if piece.count > 1 or piece.slot is None), len(pieces)
        )
        decode, self.prefill = pieces[: self.num_decode], pieces[self.num_decode :]
        self.ranges = cover([(piece.slot, piece.end) for piece in decode if piece.slot is not None])
        self.spread, self.gather = self._holes(decode)
        self.range_masks = self._range_masks(decode)
        self.prefill_masks = [self._causal(piece) for piece in self.prefill]
        self.write_index = torch.empty(0) if cache is None else self._write_index(cache)

    def positions(self) -> Tensor:
        starts = torch.tensor([piece.start for piece in self.pieces], device=self._device)
        if not self.prefill:
            return starts
        counts = torch.tensor([piece.count for piece in self.pieces], device=self._device)
        firsts = (starts - counts.cumsum(0) + counts).repeat_interleave(counts)
        return firsts + torch.arange(len(firsts), device=self._device)

    def _holes(self, decode: Sequence[Piece]) -> tuple[Tensor | None, Tensor | None]:
        """Index of the token that stands in for each slot of the ranges, and of each token's own slot; None when they are the same."""
        covered = [slot for r in self.ranges for slot in range(r.first, r.first + r.num)]
        if len(covered) == len(decode):
            return None, None
        token_of = {piece.slot: i for i, piece in enumerate(decode)}
        spread = [token_of.get(slot, 0) for slot in covered]
        gather = [i for i, slot in enumerate(covered) if slot in token_of]
        return torch.tensor(spread, device=self._device), torch.tensor(gather, device=self._device)

    def _range_masks(self, decode: Sequence[Piece]) -> list[Tensor | None]:
        end_of = {piece.slot: piece.end for piece in decode}
        masks: list[Tensor | None] = []
        for r in self.ranges:
            ends = [end_of.get(slot, 1) for slot in range(r.first, r.first + r.num)]
            if all(end == r.length for end in ends):
                masks.append(None)
                continue
            hidden = torch.arange(r.length, device=self._device) >= torch.tensor(ends, device=self._device)[:, None]
            masks.append(self._additive(hidden)[:, None, None])
        return masks

    def _causal(self, piece: Piece) -> Tensor | None:
        if piece.start == 0:
            return None
        ends = torch.arange(piece.start + 1, piece.end + 1, device=self._device)
        return self._additive(torch.arange(piece.end, device=self._device) >= ends[:, None])

    def _additive(self, hidden: Tensor) -> Tensor:
        return torch.zeros(hidden.shape, dtype=self._dtype, device=self._device).masked_fill_(hidden, -math.inf)

    def _write_index(self, cache: KeyValueCache) -> Tensor:
        """Row of the flat cache [slots * heads * length, head_dim] for each token and head, (tokens * heads,)."""
        heads = cache.keys.shape[2]
        slots = torch.tensor([piece.slot for piece in self.pieces], device=self._device)
        if self.prefill:
            slots = slots.repeat_interleave(torch.tensor([piece.count for piece in self.pieces], device=self._device))
        rows = slots[:, None] * heads + torch.arange(heads, device=self._device)
        return (rows * cache.length + self.positions()[:, None]).flatten()


def cover(decoding: Iterable[tuple[int, int]]) -> list[Range]:
    """Ranges over the slots of (slot, length), in slot order. A hole or a longer neighbour is worth it while it costs less than a call."""
    ranges: list[Range] = []
    for slot, length in decoding:
        if ranges:
            last = ranges[-1]
            wider = Range(last.first, slot - last.first + 1, max(last.length, length))
            if wider.num * wider.length - last.num * last.length <= CALL_TOKENS + length:
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


# ------------------------------------------------------------------------------------------------ a model and whether it can be served

AttentionInterface.register(
    NAME, attend
)  # no mask function beside it: Transformers then makes no mask, which is what `attend` expects


def forward(model: PreTrainedModel, ids: Tensor, *, layout: Layout, keep: Tensor) -> Tensor:
    """Logits (len(keep), vocabulary) of the packed tokens `ids` at the rows `keep`."""
    output = model(
        input_ids=ids[None], position_ids=layout.positions()[None], use_cache=False, logits_to_keep=keep, layout=layout
    )
    logits: Tensor = output.logits[0]
    return logits


def serve(model: PreTrainedModel, *, max_tokens: int) -> None:
    """Switches `model` to cached attention, in place; ConfigError with the reason where that would change what the model computes."""
    remedy = "use engine.kind 'server', or another model"
    if reason := _unsuited(model, max_tokens=max_tokens):
        raise ConfigError(f"{_name(model)} cannot run in the embedded engine: {reason}; {remedy}")
    with torch.inference_mode(), border(ConfigError, f"{_name(model)} cannot run in the embedded engine ({remedy})"):
        model.eval()
        ids = torch.arange(1, 9, device=model.device) % model.config.get_text_config().vocab_size
        model.set_attn_implementation("eager")
        expected = model(input_ids=ids[None], use_cache=False).logits[0].float()
        model.set_attn_implementation(NAME)
        gap = (_replay(model, ids) - expected).abs().max() / expected.abs().max().clamp(min=1e-6)
    tolerance = 1e-3 if model.dtype == torch.float32 else 5e-2
    if not gap <= tolerance:
        raise ConfigError(
            f"{_name(model)} cannot run in the embedded engine: its attention does more than our attention function is told. Logits of a "
            f"probe differ by {gap:.2g} relative, at most {tolerance:g} expected; {remedy}"
        )


def _replay(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """The logits of `ids` by the engine's path: a first piece, a second one that sees the first, then token by token."""
    cache = KeyValueCache(Shape.of(model), slots=1, length=len(ids), dtype=model.dtype, device=model.device)
    logits, start = [], 0
    for count in (3, 2, *[1] * (len(ids) - 5)):
        layout = Layout([Piece(0, start, count)], cache=cache, dtype=model.dtype, device=model.device)
        logits.append(
            forward(model, ids[start : start + count], layout=layout, keep=torch.arange(count, device=ids.device))
        )
        start += count
    return torch.cat(logits).float()


def _unsuited(model: PreTrainedModel, *, max_tokens: int) -> str:
    config = model.config.get_text_config()
    if not model._can_set_attn_implementation():
        return "its attention does not go through Transformers' attention interface"
    kinds = set(getattr(config, "layer_types", None) or []) - {"full_attention", "sliding_attention"}
    if kinds:
        return f"it has layers of kind {', '.join(sorted(kinds))}, and only full attention is cached"
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True) and window < max_tokens:
        return f"its attention slides over {window} tokens and sessions may have {max_tokens}; only full attention is cached"
    if getattr(config, "attn_logit_softcapping", None):
        return "it caps attention logits (attn_logit_softcapping), which scaled-dot-product attention cannot do"
    longest = getattr(config, "max_position_embeddings", None)
    if longest and longest < max_tokens:
        return f"it knows {longest} positions and sessions may have {max_tokens} tokens; lower rollout.max_tokens"
    return ""


def _name(model: PreTrainedModel) -> str:
    return model.config.name_or_path or type(model).__name__
