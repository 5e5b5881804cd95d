"""Attention for training on packed rows: many sequences side by side, each blind to the others.

    use_packed_attention(model)
    model(ids_1N, position_ids=positions_1N, segments=Segments.of([5, 3, 9]), use_cache=False)

Promise: logprobs and gradients are those of each sequence alone. What it cannot do (a sliding
window shorter than a sequence, soft-capped scores, sinks) raises ConfigError.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from ludus.errors import ConfigError
from ludus.models.attention.tree import Tree, tree_attention
from ludus.models.transfer import placed

NAME = "ludus_packed"
LONGEST_MASK = 2048
"""Longest sequence with a mask of all pairs, which then takes 16 MiB."""


# torch 2.11's compiler looks into a frozen one, and then compiles again for every row
@dataclass(slots=True, eq=False)
class Segments:
    """The bounds of a packed row's sequences. `lengths` stays on the host: no layer has to wait.

    Sequences may share the tokens of a common prefix. The row then has fewer tokens than the
    sequences together: `spread` names the row's token for each token of the whole sequences,
    `gather` one place among those for each token of the row. On a GPU `tree` is the same for tree
    attention; on a CPU `own` is the number of tokens at the end of each sequence that it does not
    share with the one before, and `past` is the causal mask of the longest."""

    lengths: tuple[int, ...]
    bounds: Tensor  # int32 (S + 1,): 0, then the running sum of lengths, on the model's device
    spread: Tensor | None = None  # int64 (sum of lengths,)
    gather: Tensor | None = None  # int64 (N,)
    tree: Tree | None = None
    own: tuple[int, ...] | None = None
    past: Tensor | None = None  # (longest, longest)

    @classmethod
    def of(
        cls,
        lengths: Seq[int],
        *,
        spread: np.ndarray | None = None,
        ends: np.ndarray | None = None,
        device: torch.device | str = "cpu",
    ) -> Segments:
        """`ends`: one past each token's last descendant, see tree.py."""
        sums = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        gather = None if spread is None else np.unique(spread, return_index=True)[1]
        if spread is None or gather is None or len(gather) == len(spread):  # nothing is shared
            return cls(tuple(lengths), placed(sums, device))
        places = [placed(torch.from_numpy(each.astype(np.int64)), device) for each in (spread, gather)]
        if torch.device(device).type == "cpu" and max(lengths) <= LONGEST_MASK:
            past = torch.full((max(lengths), max(lengths)), -torch.inf).triu_(1)
            own = np.add.reduceat(np.isin(np.arange(len(spread)), gather), sums[:-1].numpy(), dtype=int)
            return cls(tuple(lengths), sums, places[0], places[1], own=tuple(own.tolist()), past=past)
        tree = None if ends is None or torch.device(device).type == "cpu" else Tree.of(ends, device=device)
        return cls(tuple(lengths), placed(sums, device), places[0], places[1], tree)

    @property
    def longest(self) -> int:
        return max(self.lengths)


def use_packed_attention(model: PreTrainedModel) -> None:
    """Lets `model` take packed rows. Without `segments` each row is one unpadded sequence."""
    model.set_attn_implementation(NAME)
    if model.config._attn_implementation != NAME:
        raise ConfigError(
            f"the attention of {type(model).__name__} cannot be replaced, so it cannot train on packed rows; "
            "use a decoder that Transformers runs through its attention interface"
        )


def _attend(
    module: torch.nn.Module,  # noqa: ARG001
    query: Tensor,  # (B, heads, N, head_dim)
    key: Tensor,  # (B, key_value_heads, N, head_dim)
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001
    *,
    scaling: float | None = None,
    segments: Segments | None = None,
    **asked: Any,
) -> tuple[Tensor, None]:
    assert query.shape[2] == key.shape[2], "packed attention trains; it has no key-value cache"
    _refuse(asked, longest=segments.longest if segments else query.shape[2])
    # under autocast the rotary embedding leaves these two in float32
    query, key = query.to(value.dtype), key.to(value.dtype)
    if segments is None:
        return _causal(query, key, value, scaling), None
    half = value.is_cuda and value.dtype != torch.float32  # all that the GPU kernels take
    if half and segments.tree is not None:
        return tree_attention(query, key, value, scaling=scaling, tree=segments.tree), None
    if segments.own is not None and segments.spread is not None:
        key, value = (tensor.index_select(2, segments.spread) for tensor in (key, value))
        return _branches(query, key, value, scaling, segments), None
    if segments.spread is not None:
        query, key, value = (tensor.index_select(2, segments.spread) for tensor in (query, key, value))
    out = (_flash if half else _looped)(query, key, value, scaling, segments)
    return out if segments.gather is None else out.index_select(1, segments.gather), None


def _looped(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, segments: Segments) -> Tensor:
    """One call per sequence: on a CPU faster than padding, even in buckets. `split` is one node of
    the graph; slicing would add a row-sized gradient for every sequence."""
    queries, keys, values = (tensor.split(segments.lengths, dim=2) for tensor in (query, key, value))
    parts = [_causal(q, k, v, scaling) for q, k, v in zip(queries, keys, values, strict=True)]
    return torch.cat(parts, dim=1)


def _branches(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, segments: Segments) -> Tensor:
    """As `_looped`, but only tokens that are not shared with the sequence before are queries."""
    own = segments.own
    assert own is not None, "made for a CPU"
    assert segments.past is not None, "made for a CPU"
    past = segments.past.to(query.dtype)
    masks = [past[length - num : length, :length] for length, num in zip(segments.lengths, own, strict=True)]
    keys, values = (tensor.split(segments.lengths, dim=2) for tensor in (key, value))
    pieces = zip(query.split(own, dim=2), keys, values, masks, strict=True)
    return torch.cat([_causal(q, k, v, scaling, mask) for q, k, v, mask in pieces if len(mask)], dim=1)


def _causal(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, mask: Tensor | None = None) -> Tensor:
    """(B, N, heads, head_dim). `mask`: the causal one, where queries do not begin with the keys."""
    options: dict[str, Any] = {"scale": scaling, "enable_gqa": query.shape[1] != key.shape[1]}
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None, **options)
    return out.transpose(1, 2)


def _flash(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, segments: Segments) -> Tensor:
    # (N, heads, head_dim); squeezed, since the gradient of an index would be a copy into zeros
    q, k, v = (tensor.squeeze(0).transpose(0, 1) for tensor in (query, key, value))
    bounds, longest = segments.bounds, segments.longest
    # torch's varlen_attn calls this too, but before torch 2.13 it repeats key-value heads
    out: Tensor = torch.ops.aten._flash_attention_forward(
        q, k, v, bounds, bounds, longest, longest, dropout_p=0.0, is_causal=True, return_debug_mask=False, scale=scaling
    )[0]
    return out.unsqueeze(0)


def _refuse(asked: dict[str, Any], *, longest: int) -> None:
    window = asked.get("sliding_window")
    if window is not None and window < longest:
        raise ConfigError(
            f"a sequence of {longest} tokens is longer than this model's sliding window of {window}, which packed "
            f"attention does not support; set rollout.max_tokens to {window} or less"
        )
    unknown = [name for name in ("softcap", "s_aux", "position_bias") if asked.get(name) is not None]
    if unknown or asked.get("is_causal") is False:
        raise ConfigError(
            f"this model's attention uses {unknown or ['is_causal=False']}, which packed attention does not support"
        )


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, lambda *_, **__: None)


def outside_of_compilation() -> None:
    """Makes compiled layers leave their graph for this attention, and return to it afterwards."""
    AttentionInterface.register(NAME, torch.compiler.disable(_attend))
