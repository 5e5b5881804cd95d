"""Decoding on a GPU: many sequences, several tokens each, without the host in between.

Each step is one CUDA graph: forward pass, draw, and the drawn token as the input of the next step. The host hears of the tokens once
per block of steps, and finds out then which sequences were over before its end; what they said after that is thrown away. Graphs are
captured for batches of a few sizes, when first needed; a batch is filled up with rows that write to nobody's page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ludus.models import kernels
from ludus.models.paged_attention import Decoding, PagedCache


class Row(NamedTuple):
    """One sequence of a batch: its slot, the token to feed and where, and how to draw the next ones."""

    slot: int
    id: int
    position: int
    temperature: float
    origin: int
    """Of its noise, see engines/noise.py."""


def bucket(num: int, *, most: int) -> int:
    """The batch size that `num` sequences are filled up to: powers of two up to 32, then steps of a quarter."""
    size = 1
    while size < num:
        size = size * 2 if size < 32 else size + max(16, size // 4) // 16 * 16
    return min(size, most)


class Decoder:
    """Decodes with `forward`: (ids, Decoding) -> logits. Weights may change in place between two blocks; graphs stay valid."""

    def __init__(
        self,
        forward: Callable[[Tensor, Decoding], Tensor],
        *,
        cache: PagedCache,
        tables: Tensor,
        max_rows: int,
        max_steps: int,
        pool: Any,
    ) -> None:
        device = tables.device
        self._forward, self._cache, self._slot_tables, self._pool = forward, cache, tables, pool
        self._max_rows, self._max_steps = max_rows, max_steps
        self._rows = torch.arange(max_rows, device=device)
        self._ids, self._positions, self._origins, self._slots = (
            torch.zeros(max_rows, dtype=torch.int64, device=device) for _ in range(4)
        )
        self._temperatures = torch.ones(max_rows, dtype=torch.float32, device=device)
        self._tables = torch.zeros((max_rows, tables.shape[1]), dtype=torch.int32, device=device)
        self._step = torch.zeros(1, dtype=torch.int64, device=device)
        self._tokens = torch.zeros((max_steps, max_rows), dtype=torch.int64, device=device)
        self._logprobs = torch.zeros((max_steps, max_rows), dtype=torch.float32, device=device)
        self._constants = kernels.noise_constants(device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._held: list[Row] = []
        """What the buffers hold: rows that just go on need no upload."""

    def run(self, rows: Sequence[Row], *, steps: int) -> tuple[list[list[int]], list[list[float]]]:
        """Tokens and logprobs, `steps` for each row."""
        assert 0 < steps <= self._max_steps
        size = bucket(len(rows), most=self._max_rows)
        graph = self._graph(size)
        self._upload(rows, size)
        self._step.zero_()
        for _ in range(steps):
            graph.replay()
        tokens = self._tokens[:steps, : len(rows)].t().tolist()
        logprobs = self._logprobs[:steps, : len(rows)].t().tolist()
        self._held = [
            Row(row.slot, said[-1], row.position + steps, row.temperature, row.origin)
            for row, said in zip(rows, tokens, strict=True)
        ]
        return tokens, logprobs

    def _upload(self, rows: Sequence[Row], size: int) -> None:
        if self._held == list(rows):
            return
        fill = size - len(rows)
        nobody = len(self._slot_tables) - 1
        columns = [
            [row.id for row in rows] + [0] * fill,
            [row.position for row in rows] + [0] * fill,
            [_signed(row.origin) for row in rows] + [0] * fill,
            [row.slot for row in rows] + [nobody] * fill,
        ]
        uploaded = torch.tensor(columns).to(self._ids.device)
        for buffer, column in zip((self._ids, self._positions, self._origins, self._slots), uploaded, strict=True):
            buffer[:size] = column
        self._temperatures[:size] = torch.tensor([row.temperature for row in rows] + [1.0] * fill).to(self._ids.device)
        torch.index_select(self._slot_tables, 0, self._slots[:size], out=self._tables[:size])

    def _graph(self, size: int) -> torch.cuda.CUDAGraph:
        if size not in self._graphs:
            self._held = []
            for buffer in (self._ids, self._positions, self._tables, self._step):
                buffer.zero_()
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    self._one_step(size)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            self._step.zero_()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                self._one_step(size)
            self._graphs[size] = graph
        return self._graphs[size]

    def _one_step(self, size: int) -> None:
        positions = self._positions[:size]
        logits = self._forward(
            self._ids[:size], Decoding(self._cache, self._tables[:size], self._rows[:size], positions)
        )
        tokens, logprobs = kernels.draw(
            logits,
            temperatures=self._temperatures[:size],
            origins=self._origins[:size],
            positions=positions,
            constants=self._constants,
        )
        self._tokens[:, :size].index_copy_(0, self._step, tokens[None])
        self._logprobs[:, :size].index_copy_(0, self._step, logprobs[None])
        self._ids[:size].copy_(tokens)
        positions += 1
        self._step += 1


def _signed(origin: int) -> int:
    return origin - 2**64 if origin >= 2**63 else origin
