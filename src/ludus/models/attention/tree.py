"""Attention over a trie of tokens: a prefix that sequences share is computed once.

A row is the trie's nodes in depth-first order, so that a token's descendants follow it: token k is
seen by the tokens q with k <= q < ends[k], and by no other. Tiles without any such pair are never
computed. Promise: exactly that rule, forward and backward, without an N x N mask.

On a GPU only (models/kernels/tree.py); elsewhere, and where nothing is shared, see packed.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ludus.models.transfer import placed

ROWS, COLUMNS = 64, 64
"""Queries and keys of a tile: the fastest of 16 sizes on an H200, with heads of 64 and 128."""


@dataclass(frozen=True, slots=True)
class Tree:
    """The rule and its tiles: for each block of queries, how many blocks of keys it sees wholly,
    how many at all, and which, the whole ones first; and the same for each block of keys."""

    ends: Tensor  # int32 (N,)
    row_counts: Tensor  # int32 (blocks of queries, 2)
    row_lists: Tensor  # int32 (blocks of queries, most keys' blocks of one)
    column_counts: Tensor
    column_lists: Tensor

    @classmethod
    def of(cls, ends: np.ndarray, *, device: torch.device | str) -> Tree:
        tiles = seen_tiles(ends)
        lists = [each for kind in (tiles, tiles.T) for each in _listed(kind)]
        return cls(*(placed(torch.from_numpy(each.astype(np.int32)), device) for each in (ends, *lists)))


NONE, PARTLY, WHOLLY = 0, 1, 2


def seen_tiles(ends: np.ndarray) -> np.ndarray:
    """How much of each tile (blocks of queries, blocks of keys) is seen; PARTLY may be none."""
    length = len(ends)
    first_rows, first_columns = np.arange(0, length, ROWS)[:, None], np.arange(0, length, COLUMNS)
    last_rows = np.minimum(first_rows + ROWS, length) - 1
    furthest, nearest = (which.reduceat(ends, first_columns) for which in (np.maximum, np.minimum))
    touched = (first_columns <= last_rows) & (furthest > first_rows)
    whole = (first_columns + COLUMNS - 1 <= first_rows) & (nearest > last_rows)
    return np.where(whole, WHOLLY, np.where(touched, PARTLY, NONE))


def _listed(tiles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Per row, how many are seen wholly, how many at all, and which."""
    counts = np.stack([(tiles == WHOLLY).sum(axis=1), (tiles != NONE).sum(axis=1)], axis=1)
    return counts, np.argsort(-tiles, axis=1, kind="stable")[:, : counts[:, 1].max()]


def tree_attention(query: Tensor, key: Tensor, value: Tensor, *, scaling: float | None, tree: Tree) -> Tensor:
    """(1, heads, N, head_dim) each -> (1, N, heads, head_dim)."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    # squeezed: the gradient of an index would be a copy into zeros
    heads = (tensor.squeeze(0).transpose(0, 1) for tensor in (query, key, value))
    out: Tensor = _TreeAttention.apply(*(_side_by_side(each) for each in heads), tree, scale)  # type: ignore[no-untyped-call]
    return out[None]


def _side_by_side(x: Tensor) -> Tensor:
    """(N, heads, head_dim) with the heads of a token contiguous; tokens may be strided."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()


class _TreeAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, tree: Tree, scale: float) -> Tensor:
        from ludus.models.kernels import tree as tree_kernels

        out, sums = tree_kernels.forward(query, key, value, tree, scale=scale)
        ctx.save_for_backward(out, sums, query, key, value)
        ctx.tree, ctx.scale = tree, scale
        return out

    @staticmethod
    def backward(ctx: Any, by_out: Tensor) -> tuple[Tensor | None, ...]:
        from ludus.models.kernels import tree as tree_kernels

        out, sums, query, key, value = ctx.saved_tensors
        found = tree_kernels.backward(by_out, out, sums, query, key, value, ctx.tree, scale=ctx.scale)
        return *found, None, None
