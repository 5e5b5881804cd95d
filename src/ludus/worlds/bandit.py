"""A contextual bandit: every arm shows a sign, and an arm's sign decides how often it pays.

What a sign is worth is never shown. The task assigns signs to arms, and so fixes every arm's mean
(`means`), which gives gradients in closed form; attempts at one task differ in luck alone. A pull
that pays gives 1 / pulls. A session is a success if its last pull was at the best arm.
"""

from __future__ import annotations

import random
from typing import Annotated, Any

from pydantic import Field

from ludus.environments import Reply
from ludus.worlds.drawing import draw_tasks

SIGNS = ("leaf", "coin", "moon", "fish", "bell", "rain", "star", "boat")
"""From the worst to the best, in an order that cannot be guessed."""
ARMS = "abcdefgh"


class Bandit:
    """Pull the best arm: say its letter."""

    capabilities = ("memory", "self-improvement")

    def __init__(
        self,
        *,
        arms: Annotated[int, Field(ge=2, le=8)] = 5,
        pulls: Annotated[int, Field(ge=1)] = 1,
        low: Annotated[float, Field(ge=0, le=1)] = 0.1,
        high: Annotated[float, Field(ge=0, le=1)] = 0.9,
        hints: bool = True,
    ) -> None:
        """pulls: per session; low, high: probabilities that the worst and the best sign pay; hints:
        show the signs."""
        if low >= high:
            raise ValueError(f"low is {low}, not below high {high}; no arm would be best")
        if not hints and pulls == 1:
            raise ValueError("hints is off and pulls is 1: nothing tells the arms apart; set pulls to 2 or more")
        self.pulls, self.low, self.high, self.hints = pulls, low, high, hints
        self.actions = tuple(ARMS[:arms])
        self.max_turns = pulls

    def tasks(self, split: str) -> list[dict[str, Any]]:
        return draw_tasks(self._draw, split=split, seed=f"bandit {len(self.actions)}")

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        self.rng, self.pulled = rng, 0
        self.means = means(task["signs"], low=self.low, high=self.high)
        if self.hints:
            return ", ".join(f"{arm} {sign}" for arm, sign in task["signs"].items())
        return " ".join(self.actions)

    def act(self, arm: str) -> Reply:
        self.pulled += 1
        pays = self.rng.random() < self.means[arm]
        metrics = {"success": float(arm == self.solve()), "expected": self.means[arm]}
        text, done = "pays" if pays else "nothing", self.pulled == self.pulls
        return Reply(text, reward=pays / self.pulls, done=done, metrics=metrics)

    def solve(self) -> str:
        return max(self.means, key=self.means.__getitem__)

    def _draw(self, rng: random.Random) -> dict[str, Any]:
        return {"signs": dict(zip(self.actions, rng.sample(SIGNS, len(self.actions)), strict=True))}


def means(signs: dict[str, str], *, low: float, high: float) -> dict[str, float]:
    """The probability that a pull pays, by arm."""
    return {arm: low + (high - low) * SIGNS.index(sign) / (len(SIGNS) - 1) for arm, sign in signs.items()}
