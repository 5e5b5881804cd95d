"""Forward passes on a GPU as CUDA graphs: the host uploads inputs, then one launch does all.

A launched pass is collected later: the host plans and launches the next while this one runs. All
run one after the other, on one stream.

Decoder: many sequences, several tokens each, without the host in between. One graph is one forward
pass, the draw, and the drawn token as the next input, also of the next block, which is launched
before the host has seen this one. The host sees the tokens once per block and drops those after a
sequence's end. Prompter: pieces of many prompts, and a token drawn after each that is complete.

Graphs are captured for a few batch sizes, when first needed or earlier, by `warm`, while the engine
is idle; a batch is padded with sequences that write to page 0.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from itertools import accumulate, chain, count
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ludus.engines.plan import UNKNOWN, Chunk, Collect, Drawn, Request
from ludus.engines.staging import StagingBuffer
from ludus.models.attention.paged import Paged, PagedCache, blocks_of
from ludus.models.kernels import inference as kernels
from ludus.types import Sampling


def bucket(num: int, *, most: int) -> int:
    """The batch size that `num` sequences are padded to: powers of two up to 32, then finer."""
    size = 1
    while size < num:
        size = size * 2 if size < 32 else size + max(16, size // 4) // 16 * 16
    return min(size, most)


class LastDrawn:
    """Of one policy, the last token drawn for each cache row, on the device: at a place of the
    decoder's batch or of the prompter's. It is valid until the next launch of that one."""

    def __init__(self, *, max_batch: int, max_pieces: int, device: torch.device) -> None:
        self.tokens = torch.zeros(max_batch + max_pieces, dtype=torch.int64, device=device)
        self.by_decoder, self.by_prompter = self.tokens[:max_batch], self.tokens[max_batch:]
        self.place: dict[int, int] = {}  # by cache row


Forward = Callable[[Tensor, Paged, Tensor | None], Tensor]
"""(ids, where they go, which of them get logits; None: all) -> logits."""


class _Passes:
    """Computes with `forward`. Weights may change in place between passes; graphs stay valid."""

    def __init__(
        self, forward: Forward, *, cache: PagedCache, tables: Tensor, last: LastDrawn, pool: Any, rows: int, steps: int
    ) -> None:
        """`rows`: sequences of the largest pass. `steps`: tokens that it draws for each."""
        self._forward, self._cache, self._all_tables, self._last, self._pool = forward, cache, tables, last, pool
        self._tables = torch.zeros((rows, tables.shape[1]), dtype=torch.int32, device=tables.device)
        drawn = (steps, rows)
        self._outputs = StagingBuffer(tables.device, tokens=(drawn, torch.int64), logprobs=(drawn, torch.float32))
        self._tokens, self._logprobs = self._outputs.device.values()
        self._constants = kernels.noise_constants(tables.device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def _draw(self, logits: Tensor, temperatures: Tensor, origins: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return kernels.draw(
            logits, temperatures=temperatures, origins=origins, positions=positions, constants=self._constants
        )


class Decoder(_Passes):
    def __init__(self, forward: Forward, *, tables: Tensor, last: LastDrawn, max_steps: int, **shared: Any) -> None:
        device, max_batch = tables.device, len(last.by_decoder)
        super().__init__(forward, tables=tables, last=last, rows=max_batch, steps=max_steps, **shared)
        self._ids, self._max_batch, self._max_steps = last.by_decoder, max_batch, max_steps
        self._numbers = torch.arange(max_batch, device=device)
        whole, real = ((max_batch,), torch.int64), ((max_batch,), torch.float32)
        self._inputs = StagingBuffer(
            device, sources=whole, positions=whole, origins=whole, rows=whole, temperatures=real
        )
        self._inputs.host["temperatures"][:] = 1.0
        self._inputs.upload()
        self._sources, self._positions, self._origins, self._rows, self._temperatures = self._inputs.device.values()
        self._step = torch.zeros(1, dtype=torch.int64, device=device)
        self._held: tuple[int, ...] = ()
        """The cache rows of the last block, whose inputs are still on the device."""
        self.tables_changed = False  # rows have other pages than at the last block

    def launch(self, chunks: Sequence[Chunk]) -> Collect:
        """Draws `steps` tokens for each chunk, all of which decode."""
        num, steps = len(chunks), chunks[0].steps
        assert 0 < steps <= self._max_steps
        size = bucket(num, most=self._max_batch)
        graph = self._graph(size)
        self._upload(chunks, size=size)
        self._step.zero_()
        for _ in range(steps):
            graph.replay()
        wait = self._outputs.download()

        def collect() -> list[Drawn]:
            tokens, logprobs = (part[:steps, :num].T.tolist() for part in wait().values())
            return list(zip(tokens, logprobs, strict=True))

        return collect

    def _upload(self, chunks: Sequence[Chunk], *, size: int) -> None:
        """A batch that only continues needs nothing but its new pages."""
        place, num = self._last.place, len(chunks)
        rows = tuple(chunk.row for chunk in chunks)
        # below zero: not a token, but the place of one
        sources = [-1 - place[chunk.row] if chunk.ids[0] == UNKNOWN else chunk.ids[0] for chunk in chunks]
        continues = rows == self._held and sources == list(range(-1, -1 - num, -1))
        if not continues:
            given = self._inputs.host
            given["rows"][num:size] = len(self._all_tables) - 1  # nobody's
            given["temperatures"][num:size] = 1.0
            for name in ("sources", "positions", "origins"):
                given[name][num:size] = 0
            given["rows"][:num], given["sources"][:num] = rows, sources
            given["positions"][:num] = [chunk.start for chunk in chunks]
            given["temperatures"][:num] = [chunk.request.sampling.temperature for chunk in chunks]
            given["origins"][:num] = _signed([chunk.request.origin for chunk in chunks])
            self._inputs.upload()
            whence = self._sources[:size]
            drawn = self._last.tokens.index_select(0, (-1 - whence).clamp_(min=0))
            torch.where(whence < 0, drawn, whence, out=self._ids[:size])
        if self.tables_changed or not continues:
            torch.index_select(self._all_tables, 0, self._rows[:size], out=self._tables[:size])
        place.update(zip(rows, range(num), strict=True))
        self._held, self.tables_changed = rows, False

    def warm(self) -> bool:
        return _warm(self._graph, self._graphs, size=bucket, most=self._max_batch)

    def _graph(self, size: int) -> torch.cuda.CUDAGraph:
        if size not in self._graphs:
            drawn, self._held = self._ids.clone(), ()
            for buffer in (self._ids, self._positions, self._tables, self._step):
                buffer.zero_()
            self._graphs[size] = captured(lambda: self._one_step(size), pool=self._pool)
            self._ids.copy_(drawn)
        return self._graphs[size]

    def _one_step(self, size: int) -> None:
        positions = self._positions[:size]
        paged = Paged(self._cache, self._tables[:size], self._numbers[:size], positions)
        logits = self._forward(self._ids[:size], paged, None)
        tokens, logprobs = self._draw(logits, self._temperatures[:size], self._origins[:size], positions)
        self._tokens[:, :size].index_copy_(0, self._step, tokens[None])
        self._logprobs[:, :size].index_copy_(0, self._step, logprobs[None])
        self._ids[:size].copy_(tokens)
        positions += 1
        self._step += 1


class Prompter(_Passes):
    """At most `max_tokens` at a time."""

    def __init__(self, forward: Forward, *, tables: Tensor, last: LastDrawn, max_tokens: int, **shared: Any) -> None:
        max_pieces = len(last.by_prompter)
        super().__init__(forward, tables=tables, last=last, rows=max_pieces, steps=1, **shared)
        self._max_tokens, self._max_pieces = max_tokens, max_pieces
        self._inputs = StagingBuffer(
            tables.device,
            columns=((3, max_tokens), torch.int64),  # ids, positions and rows of tokens
            blocks=((3, -(-max_tokens // kernels.ROWS) + max_pieces), torch.int64),
            each=((3, max_pieces), torch.int64),  # cache rows, kept tokens and noise of pieces
            temperatures=((max_pieces,), torch.float32),
        )
        self._inputs.host["temperatures"][:] = 1.0
        self._inputs.upload()
        self._columns, self._blocks, self._each, self._temperatures = self._inputs.device.values()

    def launch(self, chunks: Sequence[Chunk]) -> Collect:
        """Draws a token for each chunk that samples."""
        counts = [chunk.count for chunk in chunks]
        size = tokens_bucket(sum(counts), most=self._max_tokens)
        graph = self._graph(size)
        self._upload(chunks, counts, size)
        graph.replay()
        drawing = [chunk.row for chunk in chunks if chunk.samples]
        num = len(drawing)
        if not num:
            return list
        self._last.place.update(zip(drawing, count(len(self._last.by_decoder)), strict=False))
        wait = self._outputs.download()

        def collect() -> list[Drawn]:
            tokens, logprobs = (part[0, :num].tolist() for part in wait().values())
            return [((token,), (logprob,)) for token, logprob in zip(tokens, logprobs, strict=True)]

        return collect

    def score(self, ids: Sequence[int], *, row: int) -> Tensor:
        """Logits after every token of `ids`, which are written to `row`; not captured."""
        size = len(ids)
        whole = Chunk(Request(list(ids), Sampling(max_tokens=1), session_id=""), row, 0, list(ids), samples=False)
        self._upload([whole], [size], size)
        return self._forward(self._columns[0, :size], self._paged(size), None)

    def _upload(self, chunks: Sequence[Chunk], counts: list[int], size: int) -> None:
        num, given = sum(counts), self._inputs.host
        ids, positions, sequences = given["columns"][:, :num]
        ids[:] = np.fromiter(chain.from_iterable(chunk.ids for chunk in chunks), np.int64, count=num)
        sequences[:] = np.repeat(np.arange(len(counts)), counts)
        firsts = np.cumsum(counts) - counts
        positions[:] = np.arange(num) + np.repeat([chunk.start for chunk in chunks] - firsts, counts)
        # tokens that pad the batch belong to a sequence without pages
        given["columns"][:, num:size] = ((0,), (0,), (self._max_pieces - 1,))
        blocks = blocks_of(counts)
        given["blocks"][:, : len(blocks)] = np.array(blocks).T
        given["blocks"][:, len(blocks) :] = ((-1,), (0,), (0,))
        rows, keep, origins = given["each"]
        rows[: len(chunks)], rows[len(chunks) :] = [chunk.row for chunk in chunks], len(self._all_tables) - 1
        drawing = [
            (end - 1, chunk.request) for end, chunk in zip(accumulate(counts), chunks, strict=True) if chunk.samples
        ]
        drawn = len(drawing)
        keep[:drawn], keep[drawn:] = [last for last, _ in drawing], 0
        origins[:drawn], origins[drawn:] = _signed([request.origin for _, request in drawing]), 0
        given["temperatures"][:drawn] = [request.sampling.temperature for _, request in drawing]
        given["temperatures"][drawn:] = 1.0
        self._inputs.upload()
        torch.index_select(self._all_tables, 0, self._each[0], out=self._tables)

    def warm(self) -> bool:
        return _warm(self._graph, self._graphs, size=tokens_bucket, most=self._max_tokens)

    def _graph(self, size: int) -> torch.cuda.CUDAGraph:
        if size not in self._graphs:
            for buffer in (self._columns, self._each, self._tables):
                buffer.zero_()
            self._blocks.fill_(-1)
            self._graphs[size] = captured(lambda: self._one_pass(size), pool=self._pool)
        return self._graphs[size]

    def _paged(self, size: int) -> Paged:
        _, positions, rows = self._columns[:, :size]
        first, second, third = self._blocks
        return Paged(self._cache, self._tables, rows, positions, blocks=(first, second, third))

    def _one_pass(self, size: int) -> None:
        _, keep, origins = self._each
        logits = self._forward(self._columns[0, :size], self._paged(size), keep)
        positions = self._columns[1].index_select(0, keep)
        tokens, logprobs = self._draw(logits, self._temperatures, origins, positions)
        self._tokens.copy_(tokens[None])
        self._logprobs.copy_(logprobs[None])
        self._last.by_prompter.copy_(tokens)


def tokens_bucket(num: int, *, most: int) -> int:
    """The number of tokens that a pass is padded to: at most a third more."""
    size = 64
    while size < num:
        power = 1 << (size.bit_length() - 1)
        size = size + power // 2 if size == power else 2 * power
    return min(size, most)


def _warm(capture: Callable[[int], object], captured: Container[int], *, size: Callable[..., int], most: int) -> bool:
    """Captures the largest missing size, whose memory serves the smaller ones too; False: none."""
    sizes = [size(1, most=most)]
    while sizes[-1] < most:
        sizes.append(size(sizes[-1] + 1, most=most))
    missing = next((each for each in reversed(sizes) if each not in captured), None)
    if missing is not None:
        capture(missing)
    return missing is not None


def captured(work: Callable[[], None], *, pool: Any) -> torch.cuda.CUDAGraph:
    """`work` as a graph, captured on this thread's stream, whose priority its kernels get; the
    default stream cannot be captured. It runs twice before, to compile and allocate everything."""
    here = torch.cuda.current_stream()
    stream = torch.cuda.Stream() if here == torch.cuda.default_stream() else here
    stream.wait_stream(here)
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    here.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # thread_local: other threads, such as a trainer's, keep allocating and launching meanwhile
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        work()
    return graph


def _signed(origins: Sequence[int]) -> np.ndarray:
    """The same 64 bits: kernels take no unsigned tensors."""
    return np.array(origins, dtype=np.uint64).view(np.int64)
