"""[rollout] and [cross_policy]: how sessions are played, and which policies sample in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from ludus.config.section import Section, password_problem


class RolloutConfig(Section):
    group_size: int = Field(default=8, ge=1)
    """Attempts at one task, which form a group and are compared with each other."""
    min_group_size: int = Field(default=2, ge=1)
    """A group with fewer scored attempts is dropped and counted."""
    retries: int = Field(default=1, ge=0)
    """How often a failed attempt is restarted before it is left out."""
    max_turns: int = Field(default=16, gt=0)
    """Turns of a session. At the limit it ends as max_turns. An environment may have its own."""
    max_turn_tokens: int = Field(default=64, gt=0)
    """Sampled tokens of a turn. At the limit the session ends as max_turn_tokens."""
    max_tokens: int = Field(default=1024, gt=0)
    """Tokens of a session: prompt, observations and samples. At the limit it ends as max_tokens."""
    max_invalid: int = Field(default=3, ge=0)
    """Invalid actions that a session may contain. One more ends it as invalid."""
    max_observation_chars: int = Field(default=8000, gt=0)
    """Characters of an observation. A longer one is truncated, with a note."""
    turn_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds that one call into the environment may take."""
    session_timeout_s: float = Field(default=900.0, gt=0)
    """Seconds that a session may take."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature, also of the logprobs that are trained."""


class OutsideConfig(Section):
    url: str = Field(pattern=r"^https?://")
    """Base URL of an OpenAI-compatible endpoint, as in engine.url. LUDUS_API_KEY holds its key."""
    chance: float = Field(gt=0, lt=1)
    """Chance that this model samples a turn (or a session: see `draw`)."""
    kind: Literal["chat", "server"] = "chat"
    """chat: text without logprobs, encoded with the policy's tokenizer: it can only be masked.
    server: token ids of the policy's tokenizer and logprobs, which may be trained on."""
    model: str = ""
    """Which of the endpoint's models to use. Empty: the only one it serves."""

    def problems(self) -> Iterator[str]:
        return password_problem(self.url, key="url")


OWN_NAMES = ("current", "stale", "reference", "evaluation", "solver")
"""Policies that an outside model may not be named after."""


class CrossPolicyConfig(Section):
    stale: float = Field(default=0.0, ge=0, lt=1)
    """Chance that an older copy of the policy samples (cross-policy sampling; 0.25 in AgentRL).
    Evaluation always uses the current policy."""
    stale_every: int = Field(default=25, gt=0)
    """Optimiser steps between two refreshes of the stale copy."""
    reference: float = Field(default=0.0, ge=0, lt=1)
    """Chance that the run's start model samples."""
    outside: dict[str, OutsideConfig] = {}
    """Models behind endpoints, by the name under which their turns are stored."""
    draw: Literal["turn", "session"] = "turn"
    """Whether the sampling policy is drawn for every turn or once per session."""
    schedule: list[tuple[int, float]] = []
    """Points [optimiser step, factor] with linear interpolation; the chances above are multiplied
    by the factor, as in [[0, 1.0], [200, 0.0]]. Empty: always 1."""

    @property
    def others(self) -> dict[str, float]:
        """The policies that sample beside the current one, with their chances."""
        ours = {name: chance for name, chance in (("stale", self.stale), ("reference", self.reference)) if chance}
        return ours | {name: outside.chance for name, outside in self.outside.items()}

    def problems(self) -> Iterator[str]:
        if sum(self.others.values()) >= 1:
            yield f"cross_policy has chances {self.others}, which leave no turn to the current policy"
        if not self.stale and self.stale_every != 25:
            yield "cross_policy.stale_every counts only with cross_policy.stale; leave it out"
        for key in self.changed(*(() if self.others else ("draw", "schedule"))):
            yield (
                f"cross_policy.{key} counts only with cross_policy.stale, cross_policy.reference or "
                "cross_policy.outside; leave it out"
            )
        if taken := set(self.outside) & set(OWN_NAMES):
            yield f"cross_policy.outside.{min(taken)} has the name of a policy of the run; rename it"
        steps = [step for step, _ in self.schedule]
        if steps != sorted(set(steps)) or any(step < 0 or not 0 <= part <= 1 for step, part in self.schedule):
            yield (
                f"cross_policy.schedule is {[list(point) for point in self.schedule]}; expected points [step, factor] "
                "with growing steps from 0 on and factors from 0 to 1"
            )
