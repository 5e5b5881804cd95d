"""Triton kernels of attention over a trie of tokens, forward and backward. Promise: key k is read
by the queries q with k <= q < ends[k], and by no other; tiles of ROWS queries and COLUMNS keys that
are in no list are never touched. Tiles that are seen wholly come first in a list and need no mask.

Imported on CUDA devices only. Tensors are (tokens, heads, head dim), with groups of query heads
that share keys and values. Sums of exponentials are base 2 logarithms, by head and token.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ludus.models.attention.tree import COLUMNS, ROWS, Tree

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _block(start, at, token_stride, head, dim, tokens, DIM: tl.constexpr):
    """Tokens `at` of one head, zeros beyond the last."""
    inside = (at[:, None] < tokens) & (dim[None, :] < DIM)
    return tl.load(start + at[:, None] * token_stride + head * DIM + dim[None, :], mask=inside, other=0.0)


@triton.jit
def _store(start, at, token_stride, head, dim, tokens, value, DIM: tl.constexpr):
    inside = (at[:, None] < tokens) & (dim[None, :] < DIM)
    place = start + at[:, None] * token_stride + head * DIM + dim[None, :]
    tl.store(place, value.to(start.dtype.element_ty), mask=inside)


@triton.jit
def _seen(row, column, ends, tokens):
    end = tl.load(ends + column, mask=column < tokens, other=0)
    return (column[None, :] <= row[:, None]) & (row[:, None] < end[None, :])


@triton.jit
def _slopes(
    q, k, v, slope, total, delta, row, column, ends, tokens, scale, WHOLE: tl.constexpr, PRECISION: tl.constexpr
):
    """The attention weights of a tile, and the gradient of its scores."""
    weights = tl.exp2(tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale - total[:, None])
    if not WHOLE:
        weights = tl.where(_seen(row, column, ends, tokens), weights, 0.0)
    by_weights = tl.dot(slope, tl.trans(v), input_precision=PRECISION)
    return weights, weights * (by_weights - delta[:, None])


@triton.jit
def _attended(
    highest, total, summed, q, k, v, row, column, ends, tokens, scale, WHOLE: tl.constexpr, PRECISION: tl.constexpr
):
    """Adds one tile to the running softmax of each row."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    if not WHOLE:
        scores = tl.where(_seen(row, column, ends, tokens), scores, -float("inf"))
    higher = tl.maximum(highest, tl.max(scores, 1))
    base = higher if WHOLE else tl.where(higher == -float("inf"), 0.0, higher)  # no key seen yet
    shrink = tl.exp2(highest - base)
    weights = tl.exp2(scores - base[:, None])
    summed = summed * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
    return higher, total * shrink + tl.sum(weights, 1), summed


@triton.jit
def _forward(
    out, sums, query, key, value, ends, counts, lists, tokens, longest, scale, query_stride, key_stride,
    value_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, DIM_P: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    block, head = tl.program_id(0), tl.program_id(1)
    row, dim = block * ROWS + tl.arange(0, ROWS), tl.arange(0, DIM_P)
    q = _block(query, row, query_stride, head, dim, tokens, DIM)
    highest = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    summed = tl.zeros([ROWS, DIM_P], tl.float32)
    wholes, visited = tl.load(counts + 2 * block), tl.load(counts + 2 * block + 1)
    for PARTLY in tl.static_range(2):
        for number in range(wholes if PARTLY else 0, visited if PARTLY else wholes):
            column = tl.load(lists + block * longest + number) * COLUMNS + tl.arange(0, COLUMNS)
            k = _block(key, column, key_stride, head // GROUP, dim, tokens, DIM)
            v = _block(value, column, value_stride, head // GROUP, dim, tokens, DIM)
            highest, total, summed = _attended(
                highest, total, summed, q, k, v, row, column, ends, tokens, scale, not PARTLY, PRECISION
            )
    _store(out, row, HEADS * DIM, head, dim, tokens, summed / total[:, None], DIM)
    tl.store(sums + head * tokens + row, highest + tl.log2(total), mask=row < tokens)


@triton.jit
def _of_queries(
    of_query, deltas, by_out, out, sums, query, key, value, ends, counts, lists, tokens, longest, scale,
    query_stride, key_stride, value_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, DIM_P: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    block, head = tl.program_id(0), tl.program_id(1)
    row, dim = block * ROWS + tl.arange(0, ROWS), tl.arange(0, DIM_P)
    q = _block(query, row, query_stride, head, dim, tokens, DIM)
    slope = _block(by_out, row, HEADS * DIM, head, dim, tokens, DIM)
    delta = tl.sum(slope.to(tl.float32) * _block(out, row, HEADS * DIM, head, dim, tokens, DIM).to(tl.float32), 1)
    tl.store(deltas + head * tokens + row, delta, mask=row < tokens)
    total = tl.load(sums + head * tokens + row, mask=row < tokens, other=0.0)
    summed = tl.zeros([ROWS, DIM_P], tl.float32)
    wholes, visited = tl.load(counts + 2 * block), tl.load(counts + 2 * block + 1)
    for PARTLY in tl.static_range(2):
        for number in range(wholes if PARTLY else 0, visited if PARTLY else wholes):
            column = tl.load(lists + block * longest + number) * COLUMNS + tl.arange(0, COLUMNS)
            k = _block(key, column, key_stride, head // GROUP, dim, tokens, DIM)
            v = _block(value, column, value_stride, head // GROUP, dim, tokens, DIM)
            _, by_scores = _slopes(
                q, k, v, slope, total, delta, row, column, ends, tokens, scale, not PARTLY, PRECISION
            )
            summed += tl.dot(by_scores.to(k.dtype), k, input_precision=PRECISION)
    _store(of_query, row, HEADS * DIM, head, dim, tokens, summed * (scale / LOG2_E), DIM)


@triton.jit
def _of_keys(
    of_key, of_value, deltas, by_out, sums, query, key, value, ends, counts, lists, tokens, longest, scale,
    query_stride, key_stride, value_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, DIM_P: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """From one query head. Heads that share keys have separate programs: the keys of a common
    prefix are few and take the most work."""
    block, head = tl.program_id(0), tl.program_id(1)
    column, dim = block * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, DIM_P)
    k = _block(key, column, key_stride, head // GROUP, dim, tokens, DIM)
    v = _block(value, column, value_stride, head // GROUP, dim, tokens, DIM)
    of_k = tl.zeros([COLUMNS, DIM_P], tl.float32)
    of_v = tl.zeros([COLUMNS, DIM_P], tl.float32)
    wholes, visited = tl.load(counts + 2 * block), tl.load(counts + 2 * block + 1)
    for PARTLY in tl.static_range(2):
        for number in range(wholes if PARTLY else 0, visited if PARTLY else wholes):
            row = tl.load(lists + block * longest + number) * ROWS + tl.arange(0, ROWS)
            q = _block(query, row, query_stride, head, dim, tokens, DIM)
            slope = _block(by_out, row, HEADS * DIM, head, dim, tokens, DIM)
            total = tl.load(sums + head * tokens + row, mask=row < tokens, other=0.0)
            delta = tl.load(deltas + head * tokens + row, mask=row < tokens, other=0.0)
            weights, by_scores = _slopes(
                q, k, v, slope, total, delta, row, column, ends, tokens, scale, not PARTLY, PRECISION
            )
            of_v += tl.dot(tl.trans(weights.to(slope.dtype)), slope, input_precision=PRECISION)
            of_k += tl.dot(tl.trans(by_scores.to(q.dtype)), q, input_precision=PRECISION)
    _store(of_key, column, HEADS * DIM, head, dim, tokens, of_k * (scale / LOG2_E), DIM)
    _store(of_value, column, HEADS * DIM, head, dim, tokens, of_v, DIM)


def forward(query: Tensor, key: Tensor, value: Tensor, tree: Tree, *, scale: float) -> tuple[Tensor, Tensor]:
    """The output, and the logarithm of each token's sum of exponentials."""
    tokens, heads, dim = query.shape
    out = torch.empty((tokens, heads, dim), dtype=query.dtype, device=query.device)
    sums = torch.empty((heads, tokens), dtype=torch.float32, device=query.device)
    _forward[(len(tree.row_counts), heads)](
        out,
        sums,
        *_common(query, key, value, tree.ends, tree.row_counts, tree.row_lists, scale=scale),
        **_sizes(query, key),
    )
    return out, sums


def backward(
    by_out: Tensor, out: Tensor, sums: Tensor, query: Tensor, key: Tensor, value: Tensor, tree: Tree, *, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    tokens, heads, dim = query.shape
    of_query = torch.empty((tokens, heads, dim), dtype=query.dtype, device=query.device)
    # by query head, to be summed
    by_head = torch.empty((2, tokens, heads, dim), dtype=key.dtype, device=query.device)
    deltas, by_out = torch.empty_like(sums), by_out.contiguous()
    _of_queries[(len(tree.row_counts), heads)](
        of_query,
        deltas,
        by_out,
        out,
        sums,
        *_common(query, key, value, tree.ends, tree.row_counts, tree.row_lists, scale=scale),
        **_sizes(query, key),
    )
    _of_keys[(len(tree.column_counts), heads)](
        *by_head,
        deltas,
        by_out,
        sums,
        *_common(query, key, value, tree.ends, tree.column_counts, tree.column_lists, scale=scale),
        **_sizes(query, key),
    )
    of_key, of_value = by_head.view(2, tokens, key.shape[1], -1, dim).sum(3)
    return of_query, of_key, of_value


def _common(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, counts: Tensor, lists: Tensor, *, scale: float
) -> list[Any]:
    """The arguments of every kernel from `query` on."""
    for each in (query, key, value):
        assert each.stride()[1:] == (each.shape[2], 1), "heads of a token lie side by side"
    strides = [each.stride(0) for each in (query, key, value)]
    return [query, key, value, ends, counts, lists, len(query), lists.shape[1], scale * LOG2_E.value, *strides]


def _sizes(query: Tensor, key: Tensor) -> dict[str, Any]:
    _, heads, dim = query.shape
    padded = max(16, triton.next_power_of_2(dim))
    return {
        "HEADS": heads,
        "GROUP": heads // key.shape[1],
        "DIM": dim,
        "DIM_P": padded,
        "ROWS": ROWS,
        "COLUMNS": COLUMNS,
        "PRECISION": "ieee" if query.dtype == torch.float32 else "tf32",
        "num_warps": 4,
        "num_stages": 2 if _shared_memory(query.device) >= 200_000 else 1,
    }


@cache
def _shared_memory(device: torch.device) -> int:
    """Bytes per program: 228 KB on data centre GPUs, 99 KB on others."""
    if device.type != "cuda":
        return 0
    properties: Any = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)
