"""Attention over the engine's paged cache on a GPU, called by `attend` of cached.py. Promise: a
cached continuation equals a plain full forward pass.

Keys and values live in pages of 64 tokens; a table lists the pages of each sequence. One forward
pass takes either one token each of many sequences, or pieces of prompts that see what precedes
them; both are kernels of sizes that the host knows, and can be captured in a CUDA graph. Page 0
belongs to nobody: the padding of a batch is written there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ludus.models.attention.cached import Shape
from ludus.models.kernels import inference as kernels

PAGE = 64
"""Tokens of a page, which one program of the attention kernels reads at a time."""


def page_bytes(shape: Shape, *, dtype: torch.dtype) -> int:
    """Bytes of one page: keys and values of all layers."""
    return 2 * shape.layers * shape.heads * PAGE * shape.head_dim * dtype.itemsize


class PagedCache:
    """Keys and values by layer, each [pages, heads, PAGE, head_dim], in one tensor: all layers of a
    page are copied or cleared at once. What was never written is zero."""

    def __init__(self, shape: Shape, *, pages: int, dtype: torch.dtype, device: torch.device) -> None:
        size = (shape.layers, 2, pages, shape.heads, PAGE, shape.head_dim)
        whole = torch.zeros(size, dtype=dtype, device=device)
        self.layers = [(keys, values) for keys, values in whole]
        self._pages = whole.flatten(0, 1)

    def copy(self, sources: Tensor, targets: Tensor) -> None:
        self._pages.index_copy_(1, targets, self._pages.index_select(1, sources))

    def clear(self, pages: Tensor) -> None:
        self._pages.index_fill_(1, pages, 0)


@dataclass(frozen=True, slots=True)
class Paged:
    """Where the tokens of one forward pass go and what they see: token n is at positions[n] of the
    sequence whose pages are tables[rows[n]]. Without `blocks` every sequence has one token, and row
    n is sequence n; with them they are pieces of prompts."""

    cache: PagedCache
    tables: Tensor  # int32 (sequences, pages of each)
    rows: Tensor  # int64 (tokens,)
    positions: Tensor  # int64 (tokens,)
    blocks: tuple[Tensor, Tensor, Tensor] | None = None  # int64 (blocks,) each, see kernels.prompt

    def attended(self, query: Tensor, key: Tensor, value: Tensor, *, layer: int, scaling: float) -> Tensor:
        """(tokens, heads, head_dim) each -> (tokens, query heads, head_dim)."""
        cached, tables, positions = self.cache.layers[layer], self.tables, self.positions
        kernels.write(key, value, into=cached, tables=tables, rows=self.rows, positions=positions)
        if self.blocks is None:
            return kernels.decode(query, cached=cached, tables=tables, positions=positions, scale=scaling)
        return kernels.prompt(
            query, cached=cached, tables=tables, positions=positions, blocks=self.blocks, scale=scaling
        )


def blocks_of(counts: list[int]) -> list[tuple[int, int, int]]:
    """(sequence, first token, end of the sequence) of every block of adjacent pieces."""
    blocks, first = [], 0
    for sequence, count in enumerate(counts):
        end = first + count
        blocks += [(sequence, row, end) for row in range(first, end, kernels.ROWS)]
        first = end
    return blocks
