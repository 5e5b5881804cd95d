"""Attention over a trie of tokens with FlexAttention: what sequences have in common is attended to, and attends, once.

A row is the trie's nodes in depth-first order, so that a token's descendants lie right behind it: token k is seen by the tokens q with
k <= q < ends[k], and by no other. Blocks of 128 x 128 that nobody sees are never computed. Promise: the mask is exactly that rule.

Half precision on a GPU only, where it is compiled once for all lengths. On a CPU it serves tests of the mask: it has no backward there.
Whether a compiler is there, knows the device and gets the numbers right is tried on a few tokens before the first use (`attended`).
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ludus.errors import describe
from ludus.models.faults import is_lost, is_out_of_memory
from ludus.models.transfer import placed

BLOCK = 128
TOLERANCE = 0.03
"""Of the greatest number; half precision leaves 0.01."""
Form = tuple[int, int, int, torch.dtype, torch.device]
"""Query heads, key-value heads, head dim, dtype and device: what a kernel is made for."""


def tree_mask(ends: np.ndarray, *, device: torch.device | str) -> Any:
    """The BlockMask of a row, made on the host from its blocks' extremes: no N x N mask exists at any time."""
    from torch.nn.attention.flex_attention import BlockMask

    length = max(2, -(-len(ends) // BLOCK)) * BLOCK  # a single block would be compiled for itself
    padded = np.arange(1, length + 1)  # what fills up the last block sees itself alone
    padded[: len(ends)] = ends
    partial, full = block_kinds(padded)
    whole = placed(torch.from_numpy(padded.astype(np.int32)), device)

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < whole[key])

    lists: list[Any] = [
        placed(torch.from_numpy(each)[None, None], device) for kind in (partial, full) for each in _listed(kind)
    ]
    settings: dict[str, Any] = {"BLOCK_SIZE": BLOCK, "mask_mod": sees, "seq_lengths": (length, length)}
    return BlockMask.from_kv_blocks(*lists, **settings)


def block_kinds(ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which blocks of keys (columns) each block of queries (rows) sees in part, and which as a whole."""
    blocks = ends.reshape(-1, BLOCK)
    first = np.arange(len(blocks)) * BLOCK
    before = first[:, None] > first[None, :]
    some = before & (blocks.max(axis=1)[None, :] > first[:, None])
    full = before & (blocks.min(axis=1)[None, :] >= first[:, None] + BLOCK)
    return (some & ~full) | np.eye(len(blocks), dtype=np.bool_), full


def _listed(kind: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Per row, how many and which, those first: FlexAttention's form of a sparse matrix."""
    return kind.sum(axis=1).astype(np.int32), np.argsort(~kind, axis=1, kind="stable").astype(np.int32)


def tree_attention(query: Tensor, key: Tensor, value: Tensor, *, scaling: float | None, mask: Any) -> Tensor:
    """(1, heads, N, head_dim) each -> (1, N, heads, head_dim)."""
    tokens = query.shape[2]
    missing = mask.seq_lengths[0] - tokens
    query, key, value = (F.pad(tensor, (0, 0, 0, missing)) for tensor in (query, key, value))
    out: Tensor = _flex(query.is_cuda)(query, key, value, block_mask=mask, scale=scaling, enable_gqa=True)
    return out[:, :, :tokens].transpose(1, 2)


# ------------------------------------------------------------------------------------------------ where it cannot be used

_troubles: dict[Form, str] = {}
"""By what was tried: why it cannot be used; empty: it can."""


def troubles() -> list[str]:
    return [trouble for trouble in _troubles.values() if trouble]


def attended(query: Tensor, key: Tensor, value: Tensor, *, scaling: float | None, mask: Any) -> Tensor | None:
    """As `tree_attention`, or None where that cannot be used: then the caller has another way to the same numbers. Warns once."""
    form = (query.shape[1], key.shape[1], query.shape[3], query.dtype, query.device)
    if form not in _troubles:
        _note(form, _tried(form))
    if _troubles[form]:
        return None
    try:
        return tree_attention(query, key, value, scaling=scaling, mask=mask)
    except Exception as error:  # a compiler may raise anything
        _note(form, _named(error))
        return None


def _note(form: Form, trouble: str) -> None:
    _troubles[form] = trouble
    if trouble:
        heads, key_heads, dim, dtype, device = form
        what = f"{heads} heads of {dim} over {key_heads}, {str(dtype).removeprefix('torch.')}, {device}"
        warnings.warn(
            f"tree attention (FlexAttention) is not used ({what}): {trouble}. Attention sees every sequence whole instead: the same "
            "numbers, but what sequences have in common is attended to once for each",
            stacklevel=3,
        )


def _tried(form: Form) -> str:
    """What is wrong with values or gradients of a small trie; empty: nothing."""
    try:
        with torch.enable_grad():
            gap = _gap(form)
    except Exception as error:
        return _named(error)
    return "" if gap <= TOLERANCE else f"its numbers are wrong by {gap:.2g}, at most {TOLERANCE:g} expected"


def _named(error: Exception) -> str:
    """Memory that ran out and devices that are lost are not its fault."""
    if is_out_of_memory(error) or is_lost(error):
        raise error
    return describe(error)


def _gap(form: Form) -> float:
    """The greatest difference to plain attention in float32, relative to the greatest number, of output and gradients."""
    heads, key_heads, dim, dtype, device = form
    tokens = 2 * BLOCK + 40
    ends = np.full(tokens, tokens)
    ends[BLOCK + 10 : BLOCK + 70] = BLOCK + 70  # a branch that those behind it do not see
    generator = torch.Generator(device).manual_seed(0)
    given = [
        torch.randn((1, each, tokens, dim), device=device, generator=generator).to(dtype)
        for each in (heads, key_heads, key_heads)
    ]
    at, whole = torch.arange(tokens, device=device), torch.from_numpy(ends).to(device)
    seen = (at[None, :] <= at[:, None]) & (at[:, None] < whole[None, :])

    def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        grouped = heads != key_heads
        return F.scaled_dot_product_attention(
            query.float(), key.float(), value.float(), attn_mask=seen, enable_gqa=grouped
        ).transpose(1, 2)

    def tree(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return tree_attention(query, key, value, scaling=None, mask=tree_mask(ends, device=device))

    found = []
    for way in (plain, tree):
        leaves = [tensor.clone().requires_grad_() for tensor in given]
        out = way(*leaves)
        out.float().square().sum().backward()  # type: ignore[no-untyped-call]
        found.append([out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)])
    gaps = [(got - right).abs().max() / right.abs().max() for right, got in zip(*found, strict=True)]
    return float(torch.stack([gap.float() for gap in gaps]).max())


@cache
def _flex(compiled: bool) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    # Uncompiled it would make all N x N scores. Every microbatch has another length: without dynamic shapes each would be compiled anew.
    return torch.compile(flex_attention, dynamic=True) if compiled else flex_attention
