"""What a schedule decides about, and its decisions: slots and requests, which it alone changes, and the plan of one step of the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ludus.types import CURRENT, Completion, Sampling

Drawn = tuple[Sequence[int], Sequence[float]]
"""Tokens drawn for one sequence, in order, and the logprob of each."""
NOTHING: Drawn = ((), ())
UNKNOWN = -1
"""Stands for a token that was drawn, but not yet heard of."""
Landing = Callable[[], list[Drawn]]
"""Waits for a pass that was launched, and has what it drew."""


@dataclass(slots=True, eq=False)
class Slot:
    """Room for one sequence. The cache holds keys and values of the first `length` of `ids`, all of `version`."""

    index: int
    policy: str = ""
    version: int | None = None
    """None: empty, or in-flight under more than one version."""
    ids: list[int] = field(default_factory=list)
    length: int = 0
    session_id: str | None = None
    """Whose next turn this is kept for; None: the next that needs a slot may take it, and until then may copy from it."""
    busy: bool = False
    used: int = 0
    keys: list[int] = field(default_factory=list)
    """What it is listed under, see beginnings.py."""


@dataclass(slots=True, eq=False)
class Request:
    """One generation. `ids` is the prompt and what was sampled so far; the schedule owns it and everything below."""

    ids: list[int]
    sampling: Sampling
    session_id: str
    policy: str = CURRENT
    num_prompt: int = field(init=False)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    slot: Slot | None = None
    leader: Slot | None = None
    """The slot that is computing a prefix of this prompt right now; waiting for it is cheaper than computing it twice."""
    num_shared: int = 0
    in_flight: tuple[Chunk, ...] = ()
    """What of it was planned and has not landed yet, in order."""

    def __post_init__(self) -> None:
        self.num_prompt = len(self.ids)

    @property
    def num_sampled(self) -> int:
        return len(self.logprobs)

    def over_after(self, tokens: Sequence[int]) -> int | None:
        """Which of the next `tokens` is the last."""
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
class Found:
    """Where the beginning of a prompt is: `kept` tokens in the slot of its own session, or more of it, `num_shared`, in `source`."""

    own: Slot | None
    kept: int
    source: Slot | None
    num_shared: int


@dataclass(frozen=True, slots=True)
class Copy:
    """The first `count` cached tokens of slot `source` go to slot `target`, before anything is computed. With pages: of those tokens only
    the ones in `source_pages`; they may have other holders when the copy is carried out, but nothing new in them yet."""

    source: int
    target: int
    count: int
    source_pages: tuple[int, ...] = ()
    target_pages: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Spill:
    """The first `count` cached tokens of a slot whose request did not end well; they may hold NaN. With pages: of those, the pages that
    nobody else holds."""

    slot: int
    count: int
    pages: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Chunk:
    """Tokens of a request to compute, from position `start` on; `samples` when the next token is drawn after them, and `steps` of them in a
    row where it decodes. Their id is UNKNOWN where it goes on from what is still in flight.

    `draft`: what will probably be drawn, computed behind them. As many tokens are drawn as it turns out right, and one.
    Nobody changes it; it is not frozen because one is made for every sequence in every step, and freezing triples what that takes.
    """

    request: Request
    slot: int
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
        """Goes on from the token drawn last. A prompt may end in a piece of one token, or be cut to one: only what draws can go on
        drawing."""
        return self.samples and len(self.ids) == 1

    @property
    def width(self) -> int:
        """Tokens of the pass."""
        return len(self.ids) + len(self.draft)


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass of one policy: decoding chunks first, in slot order, then pieces of prompts.

    With `steps` above 1 all its chunks decode, and each draws that many tokens in a row, the last ones perhaps past its end.
    """

    policy: str
    chunks: tuple[Chunk, ...]

    @property
    def steps(self) -> int:
        return self.chunks[0].steps


@dataclass(frozen=True, slots=True)
class Plan:
    """One step of the engine: first the copies, in order, then the passes. `tables`: by slot, its pages, where they have changed."""

    admitted: tuple[Request, ...]
    copies: tuple[Copy, ...]
    passes: tuple[Pass, ...]
    tables: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
