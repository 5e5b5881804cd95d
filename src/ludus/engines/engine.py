"""The Engine seam: token ids in, token ids out. Promise: every sampled token carries the logprob and the version it was made with.

Beside it stands the TextEngine, for outside models of which nothing but words can be had: they can be evaluated and cloned, not trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ludus.types import CURRENT, Action, Completion, Message, Sampling, Tool


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can honour; checked at start, so that nothing is silently ignored."""

    policies: bool
    """Several named policies side by side."""
    load: bool
    """New weights while requests are in flight."""
    score: bool
    """Logprobs of given tokens, which the probe check needs."""


class Engine(Protocol):
    @property
    def capabilities(self) -> Capabilities: ...

    async def generate(
        self, ids: Sequence[int], *, sampling: Sampling, session_id: str, policy: str = CURRENT
    ) -> Completion:
        """Continues `ids`. Cancelling the call cancels the generation. `session_id` keys the cache kept between turns."""
        ...

    async def score(self, ids: Sequence[int], *, policy: str = CURRENT, temperature: float = 1.0) -> list[float]:
        """Logprobs of ids[1:] given what precedes each."""
        ...

    async def load(self, version: int, *, policy: str = CURRENT) -> None:
        """Returns when every later token of `policy` is made with `version`."""
        ...

    async def release(self, session_id: str) -> None:
        """The session is over: forget what was cached for it."""
        ...

    async def close(self) -> None: ...


OUTSIDE = "outside"
"""The policy of a model that is not ours: its words carry no version."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said, in words. The counts of tokens are the server's own; 0 where it does not tell."""

    action: Action
    stop: Literal["end", "length"]
    num_prompt_tokens: int = 0
    num_tokens: int = 0
    policy: str = OUTSIDE


class TextEngine(Protocol):
    async def answer(
        self, messages: Sequence[Message], *, tools: Sequence[Tool], sampling: Sampling, session_id: str
    ) -> Answer:
        """The next turn of the conversation. `sampling.stop_ids` mean nothing here: the model ends its own turns."""
        ...

    async def close(self) -> None: ...
