"""The schedule's records: cache rows and requests, which it alone changes, and its plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ludus.engines.noise import noise_origin
from ludus.types import CURRENT, Completion, Sampling

Drawn = tuple[Sequence[int], Sequence[float]]
"""Tokens drawn for one sequence, in order, and the logprob of each."""
NOTHING: Drawn = ((), ())
UNKNOWN = -1
"""Stands for a token that was drawn but has not been collected yet."""
Collect = Callable[[], list[Drawn]]
"""Waits for a launched pass and returns what it drew."""


@dataclass(slots=True, eq=False)
class CacheRow:
    """Room for one sequence: keys and values of the first `length` of `ids`, all of `version`."""

    index: int
    policy: str = ""
    version: int | None = None  # None: empty, or computed under more than one version
    ids: list[int] = field(default_factory=list)
    length: int = 0
    session_id: str | None = None
    """The session whose next turn it is kept for. None: any request may take it or copy from it."""
    busy: bool = False
    used: int = 0
    keys: list[int] = field(default_factory=list)  # its entries in the prefix index


@dataclass(slots=True, eq=False)
class Request:
    """One generation. `ids` is the prompt and the tokens sampled so far."""

    ids: list[int]
    sampling: Sampling
    session_id: str
    policy: str = CURRENT
    num_prompt: int = field(init=False)
    origin: int = field(init=False)  # of its noise, see noise.py
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    row: CacheRow | None = None
    leader: CacheRow | None = None
    """The row that is computing a prefix of this prompt, which is waited for."""
    num_shared: int = 0
    in_flight: tuple[Chunk, ...] = ()
    """Its chunks that were planned and not collected yet, in order."""

    def __post_init__(self) -> None:
        self.num_prompt, self.origin = len(self.ids), noise_origin(self.sampling.seed)

    def over_after(self, tokens: Sequence[int]) -> int | None:
        """Index of the last token of the completion among the next `tokens`; None: it continues."""
        room = self.sampling.max_tokens - len(self.logprobs)
        ends = [tokens.index(stop) for stop in self.sampling.stop_ids if stop in tokens]
        if ends:
            return min(*ends, room - 1)
        return room - 1 if len(tokens) >= room else None

    def completion(self, stop: Literal["end", "length"]) -> Completion:
        return Completion(
            ids=tuple(self.ids[self.num_prompt :]),
            logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            stop=stop,
            policy=self.policy,
        )


@dataclass(frozen=True, slots=True)
class Span:
    """The first `count` cached tokens of a row. With pages: those of them that lie in `pages`."""

    row: int
    count: int
    pages: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Chunk:
    """Tokens of a request to compute, from position `start` on. `samples`: a token is drawn after
    them, and `steps` tokens in a row when it decodes. An unknown id is UNKNOWN.

    `draft`: the tokens that will probably be drawn, computed behind `ids`. One more token is drawn
    than the draft got right. Nobody changes a chunk; a frozen one is three times as slow to make.
    """

    request: Request
    row: int
    start: int
    ids: list[int]
    samples: bool
    draft: tuple[int, ...] = ()
    steps: int = 1

    @property
    def count(self) -> int:
        return len(self.ids)

    @property
    def end(self) -> int:
        return self.start + len(self.ids)

    @property
    def decodes(self) -> bool:
        """Continues from the last drawn token; a piece of a prompt may also be one token."""
        return self.samples and len(self.ids) == 1

    @property
    def width(self) -> int:
        """Tokens it adds to the pass."""
        return len(self.ids) + len(self.draft)


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass of one policy: decoding chunks first, in row order, then prompt chunks.

    With `steps` above 1 every chunk decodes that many tokens, the last ones perhaps past its end.
    """

    policy: str
    chunks: tuple[Chunk, ...]

    @property
    def steps(self) -> int:
        return self.chunks[0].steps


@dataclass(frozen=True, slots=True)
class Plan:
    """One iteration of the engine: first the copies (source, target), in order, then the passes.

    With pages, a copy's pages may have other holders by then, but nothing new in them yet."""

    admitted: tuple[Request, ...]
    copies: tuple[tuple[Span, Span], ...]
    passes: tuple[Pass, ...]
    tables: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """The pages of each row whose pages have changed."""
