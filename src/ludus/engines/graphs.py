"""Forward passes on a GPU as CUDA graphs: the host says what, and one launch does it.

What is launched lands later: the host plans and launches the next pass while this one runs. All of them run one after the other, on one
stream.

Decoder: many sequences, several tokens each, without the host in between. Each step is one graph: forward pass, draw, and the drawn
token as the input of the next step, also that of the next block, which is launched before the host has heard of this one's tokens. It
hears of them once per block of steps, and finds out then which sequences were over before its end; what they said after that is thrown
away. Prompter: pieces of many prompts, and a token drawn after each that is whole.

Graphs are captured for batches of a few sizes, when first needed, or before, by `warm`, while there is nothing else to do; a batch is
filled up with rows that write to nobody's page.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from itertools import accumulate, chain, count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ludus.engines.plan import UNKNOWN, Drawn, Landing
from ludus.engines.staging import Packed
from ludus.models.attention.paged import Paged, PagedCache, blocks_of
from ludus.models.kernels import inference as kernels


class Row(NamedTuple):
    """One sequence of a batch: its slot, the token to feed and where, and how to draw the next ones. A token that is UNKNOWN is the last
    that was drawn for this slot."""

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


class LastDrawn:
    """Of one policy, the token drawn last for each slot, where it was drawn: in a row of the decoder, or behind a piece of the prompter.
    A place is good until the next launch of whoever it belongs to."""

    def __init__(self, *, max_rows: int, max_pieces: int, device: torch.device) -> None:
        self.tokens = torch.zeros(max_rows + max_pieces, dtype=torch.int64, device=device)
        self.by_rows, self.by_pieces = self.tokens[:max_rows], self.tokens[max_rows:]
        self.place: dict[int, int] = {}
        """By slot."""


Forward = Callable[[Tensor, Paged, Tensor | None], Tensor]
"""(ids, where they go, which of them to give logits for; None: all) -> logits."""


class Decoder:
    """Decodes with `forward`. Weights may change in place between two blocks; graphs stay valid."""

    def __init__(
        self,
        forward: Forward,
        *,
        cache: PagedCache,
        tables: Tensor,
        last: LastDrawn,
        max_steps: int,
        pool: Any,
    ) -> None:
        device, max_rows = tables.device, len(last.by_rows)
        self._forward, self._cache, self._slot_tables, self._pool = forward, cache, tables, pool
        self._last, self._ids = last, last.by_rows
        self._max_rows, self._max_steps = max_rows, max_steps
        self._rows = torch.arange(max_rows, device=device)
        whole, real = ((max_rows,), torch.int64), ((max_rows,), torch.float32)
        self._given = Packed(device, sources=whole, positions=whole, origins=whole, slots=whole, temperatures=real)
        self._given.host["temperatures"][:] = 1.0
        self._given.bring()
        self._sources, self._positions, self._origins, self._slots, self._temperatures = self._given.device.values()
        self._tables = torch.zeros((max_rows, tables.shape[1]), dtype=torch.int32, device=device)
        self._step = torch.zeros(1, dtype=torch.int64, device=device)
        said = (max_steps, max_rows)
        self._said = Packed(device, tokens=(said, torch.int64), logprobs=(said, torch.float32))
        self._tokens, self._logprobs = self._said.device.values()
        self._constants = kernels.noise_constants(device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._held: tuple[int, ...] = ()
        """The slots whose rows the buffers hold as the last block left them."""
        self.moved = False
        """Slots have other pages than at the last block."""

    def launch(self, rows: Sequence[Row], *, steps: int) -> Landing:
        """Tokens and logprobs, `steps` for each row."""
        assert 0 < steps <= self._max_steps
        size = bucket(len(rows), most=self._max_rows)
        graph = self._graph(size)
        self._upload(rows, size=size)
        self._step.zero_()
        for _ in range(steps):
            graph.replay()
        said = self._said.fetching()

        def landed() -> list[Drawn]:
            tokens, logprobs = (part[:steps, : len(rows)].T.tolist() for part in said().values())
            return list(zip(tokens, logprobs, strict=True))

        return landed

    def _upload(self, rows: Sequence[Row], *, size: int) -> None:
        """Rows that just go on, all of them, need nothing but the pages they have got."""
        slots, ids, positions, temperatures, origins = zip(*rows, strict=True)
        place, num = self._last.place, len(rows)
        # below zero: not a token, but the place of one
        sources = [-1 - place[slot] if token == UNKNOWN else token for slot, token in zip(slots, ids, strict=True)]
        goes_on = slots == self._held and sources == list(range(-1, -1 - num, -1))
        if not goes_on:
            given = self._given.host
            given["slots"][num:size] = len(self._slot_tables) - 1  # nobody's
            given["temperatures"][num:size] = 1.0
            for name in ("sources", "positions", "origins"):
                given[name][num:size] = 0
            given["slots"][:num], given["sources"][:num], given["positions"][:num] = slots, sources, positions
            given["temperatures"][:num], given["origins"][:num] = temperatures, _signed(origins)
            self._given.bring()
            whence = self._sources[:size]
            drawn = self._last.tokens.index_select(0, (-1 - whence).clamp_(min=0))
            torch.where(whence < 0, drawn, whence, out=self._ids[:size])
        if self.moved or not goes_on:
            torch.index_select(self._slot_tables, 0, self._slots[:size], out=self._tables[:size])
        place.update(zip(slots, range(num), strict=True))
        self._held, self.moved = slots, False

    def warm(self) -> bool:
        """Captures one more graph; False when all are there."""
        return _warm(self._graph, self._graphs, size=bucket, most=self._max_rows)

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
        paged = Paged(self._cache, self._tables[:size], self._rows[:size], positions)
        logits = self._forward(self._ids[:size], paged, None)
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


class Piece(NamedTuple):
    """Tokens of one sequence from `start` on; `draws` when a token is drawn after them."""

    slot: int
    start: int
    ids: list[int]
    draws: bool
    temperature: float
    origin: int


class Prompter:
    """Reads pieces of prompts with `forward`, at most `max_tokens` at a time."""

    def __init__(
        self, forward: Forward, *, cache: PagedCache, tables: Tensor, last: LastDrawn, max_tokens: int, pool: Any
    ) -> None:
        device, max_pieces = tables.device, len(last.by_pieces)
        self._forward, self._cache, self._slot_tables, self._pool = forward, cache, tables, pool
        self._last, self._max_pieces = last, max_pieces
        self._max_blocks = -(-max_tokens // kernels.ROWS) + max_pieces
        self._given = Packed(
            device,
            columns=((3, max_tokens), torch.int64),  # ids, positions and rows of tokens
            blocks=((3, self._max_blocks), torch.int64),
            each=((3, max_pieces), torch.int64),  # slots, kept tokens and noise of pieces
            temperatures=((max_pieces,), torch.float32),
        )
        self._given.host["temperatures"][:] = 1.0
        self._given.bring()
        self._columns, self._blocks, self._each, self._temperatures = self._given.device.values()
        self._tables = torch.zeros((max_pieces, tables.shape[1]), dtype=torch.int32, device=device)
        self._said = Packed(device, tokens=((max_pieces,), torch.int64), logprobs=((max_pieces,), torch.float32))
        self._tokens, self._logprobs = self._said.device.values()
        self._constants = kernels.noise_constants(device)
        self._max_tokens = max_tokens
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def launch(self, pieces: Sequence[Piece]) -> Landing:
        """A token, and its logprob, for each piece that draws."""
        counts = [len(piece.ids) for piece in pieces]
        size = tokens_bucket(sum(counts), most=self._max_tokens)
        graph = self._graph(size)
        self._upload(pieces, counts, size)
        graph.replay()
        drawing = [piece.slot for piece in pieces if piece.draws]
        num = len(drawing)
        if not num:
            return list
        self._last.place.update(zip(drawing, count(len(self._last.by_rows)), strict=False))
        said = self._said.fetching()

        def landed() -> list[Drawn]:
            tokens, logprobs = (part[:num].tolist() for part in said().values())
            return [((token,), (logprob,)) for token, logprob in zip(tokens, logprobs, strict=True)]

        return landed

    def score(self, ids: Sequence[int], *, slot: int) -> Tensor:
        """Logits after every token of `ids`, which are read into `slot`; not captured."""
        piece = Piece(slot, 0, list(ids), False, 1.0, 0)
        size = len(ids)
        self._upload([piece], [size], size)
        return self._forward(self._columns[0, :size], self._paged(size), None)

    def _upload(self, pieces: Sequence[Piece], counts: list[int], size: int) -> None:
        num, given = sum(counts), self._given.host
        ids, positions, rows = given["columns"][:, :num]
        ids[:] = np.fromiter(chain.from_iterable(piece.ids for piece in pieces), np.int64, count=num)
        rows[:] = np.repeat(np.arange(len(counts)), counts)
        firsts = np.cumsum(counts) - counts
        positions[:] = np.arange(num) + np.repeat([piece.start for piece in pieces] - firsts, counts)
        # tokens that fill up the batch belong to a sequence of nobody's pages
        given["columns"][:, num:size] = ((0,), (0,), (self._max_pieces - 1,))
        blocks = blocks_of(counts)
        given["blocks"][:, : len(blocks)] = np.array(blocks).T
        given["blocks"][:, len(blocks) :] = ((-1,), (0,), (0,))
        slots, keep, origins = given["each"]
        slots[: len(pieces)], slots[len(pieces) :] = [piece.slot for piece in pieces], len(self._slot_tables) - 1
        drawing = [(end - 1, piece) for end, piece in zip(accumulate(counts), pieces, strict=True) if piece.draws]
        drawn = len(drawing)
        keep[:drawn], keep[drawn:] = [row for row, _ in drawing], 0
        origins[:drawn], origins[drawn:] = _signed([piece.origin for _, piece in drawing]), 0
        given["temperatures"][:drawn] = [piece.temperature for _, piece in drawing]
        given["temperatures"][drawn:] = 1.0
        self._given.bring()
        torch.index_select(self._slot_tables, 0, self._each[0], out=self._tables)

    def warm(self) -> bool:
        """As the decoder's."""
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
        tokens, logprobs = kernels.draw(
            logits,
            temperatures=self._temperatures,
            origins=origins,
            positions=self._columns[1].index_select(0, keep),
            constants=self._constants,
        )
        self._tokens.copy_(tokens)
        self._logprobs.copy_(logprobs)
        self._last.by_pieces.copy_(tokens)


def tokens_bucket(num: int, *, most: int) -> int:
    """The number of tokens that a pass is filled up to: at most a third more than it has."""
    size = 64
    while size < num:
        power = 1 << (size.bit_length() - 1)
        size = size + power // 2 if size == power else 2 * power
    return min(size, most)


def _warm(capture: Callable[[int], object], captured: Container[int], *, size: Callable[..., int], most: int) -> bool:
    """The largest that is missing: what it allocates serves the smaller ones too."""
    missing = next((each for each in _sizes(size, most=most) if each not in captured), None)
    if missing is not None:
        capture(missing)
    return missing is not None


def _sizes(size: Callable[..., int], *, most: int) -> list[int]:
    """All that `size` makes of 1 .. most, the largest first."""
    found = [size(1, most=most)]
    while found[-1] < most:
        found.append(size(found[-1] + 1, most=most))
    return found[::-1]


def captured(work: Callable[[], None], *, pool: Any) -> torch.cuda.CUDAGraph:
    """`work` as a graph, captured on this thread's stream, whose priority its kernels get; the default one cannot be captured. It is run
    twice before, so that everything it compiles or allocates is there."""
    here = torch.cuda.current_stream()
    stream = torch.cuda.Stream() if here == torch.cuda.default_stream() else here
    stream.wait_stream(here)
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    here.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # thread_local: other threads, such as a trainer's, go on allocating and launching meanwhile
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        work()
    return graph


def _signed(origins: Sequence[int]) -> np.ndarray:
    """The same 64 bits; there is no unsigned tensor that kernels take."""
    return np.array(origins, dtype=np.uint64).view(np.int64)
