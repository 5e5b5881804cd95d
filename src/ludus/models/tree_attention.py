"""Attention over a trie of tokens with FlexAttention: what sequences have in common is attended to, and attends, once.

A row is the trie's nodes in depth-first order, so that a token's descendants lie right behind it: token k is seen by the tokens q with
k <= q < ends[k], and by no other. Blocks of 128 x 128 that nobody sees are never computed. Promise: the mask is exactly that rule.

Half precision on a GPU only, where it is compiled once for all lengths. On a CPU it serves tests of the mask: it has no backward there.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ludus.models.transfer import placed

BLOCK = 128


def tree_mask(ends: np.ndarray, *, device: torch.device | str) -> Any:
    """The BlockMask of a row, made on the host from its blocks' extremes: no N x N mask exists at any time."""
    from torch.nn.attention.flex_attention import BlockMask

    length = -(-len(ends) // BLOCK) * BLOCK
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


@cache
def _flex(compiled: bool) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    # Uncompiled it would make all N x N scores. Every microbatch has another length: without dynamic shapes each would be compiled anew.
    return torch.compile(flex_attention, dynamic=True) if compiled else flex_attention
