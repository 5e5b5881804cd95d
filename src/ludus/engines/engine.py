"""The Engine role: token ids in, token ids out.

Promise: every sampled token carries the logprob and the version that it was made with.

A TextEngine is a model behind an endpoint that returns text alone. Its sessions can be evaluated
and cloned, not trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from ludus.types import CURRENT, Action, Completion, Message, Sampling, Tool

if TYPE_CHECKING:
    from ludus.weights.channel import Source  # imports torch, which a rollout process does without


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do. A run that needs more is refused at start."""

    policies: bool  # serves several named policies at once
    load: bool  # loads new weights while requests are in flight
    score: bool  # returns the logprobs of given tokens, which the probe needs


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Totals since the start; `running` and `waiting` are gauges."""

    tokens: int = 0
    prefill_computed: int = 0
    prefill_reused: int = 0
    busy_s: float = 0.0
    device_s: float = 0.0  # the part of `busy_s` that was spent waiting for a GPU; 0 on a CPU
    load_s: float = 0.0  # time in which a load stopped generation
    loads: int = 0
    preempted: int = 0  # requests that were evicted because memory ran out, and computed again
    drafted: int = 0  # tokens computed ahead by speculative decoding
    drafts_kept: int = 0  # speculated tokens that were accepted; each saved a pass
    running: int = 0
    waiting: int = 0


class Generator(Protocol):
    """The part of an engine that sessions need."""

    async def generate(
        self, ids: Sequence[int], *, sampling: Sampling, session_id: str, policy: str = CURRENT
    ) -> Completion:
        """Continue `ids`. Cancelling the call cancels the generation. `session_id` is the key of
        the cache that is kept between turns."""

    async def release(self, session_id: str) -> None:
        """Drop what is cached for this session, which is over."""


class Engine(Generator, Protocol):
    @property
    def capabilities(self) -> Capabilities: ...

    async def score(self, ids: Sequence[int], *, policy: str = CURRENT, temperature: float = 1.0) -> list[float]:
        """Return the logprob of each of ids[1:] given the ids before it."""

    async def load(self, version: int, *, policy: str = CURRENT, source: Source) -> None:
        """Load `version` from `source`; return when every later token of `policy` comes from it."""

    async def add_policy(self, name: str, *, version: int, source: Source) -> None:
        """Serve one more set of weights under `name`. Loads change it only when they name it."""

    def stats(self) -> EngineStats: ...

    async def ended(self) -> None:
        """Raise EngineFailed with the cause once the engine cannot generate; never return."""

    async def close(self) -> None:
        """Stop; pending calls raise EngineFailed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One turn as text. Token counts are the server's own; 0 where it reports none."""

    action: Action
    stop: Literal["end", "length"]
    num_prompt_tokens: int = 0
    num_tokens: int = 0
    policy: str = "outside"  # stands for an endpoint's model, whose text carries no version


class TextEngine(Protocol):
    async def answer(
        self, messages: Sequence[Message], *, tools: Sequence[Tool], sampling: Sampling, session_id: str
    ) -> Answer:
        """Return the next turn. `sampling.stop_ids` are ignored: the model ends its own turns."""

    async def close(self) -> None: ...
