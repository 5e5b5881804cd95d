"""A corridor with a treasure at its far end, and close behind the start a coin, which is worth
little and ends the session too.

In every cell hangs a sign that means left or right; one leads forward, the other back. What a sign
means is never shown, and each quarter of the corridor has its own signs, so the far quarters can be
learnt only by those who get there. The metrics are `position`, counted from the coin, and
`distinct_states`, the cells seen in the session.
"""

from __future__ import annotations

import random
from typing import Annotated, Any

from pydantic import Field

from ludus.environments import Reply
from ludus.worlds.drawing import draw_tasks

SIGNS = (("lamp", "rope"), ("bell", "vase"), ("horn", "mask"), ("drum", "coat"))
"""By quarter: the sign for left and the sign for right."""


class Corridor:
    """Say left or right. A treasure is ahead, a coin behind."""

    capabilities = ("planning", "memory")
    actions = ("left", "right")

    def __init__(
        self,
        *,
        length: Annotated[int, Field(ge=4, le=1000)] = 12,
        start: Annotated[int, Field(ge=1)] = 2,
        coin: Annotated[float, Field(ge=0, lt=1)] = 0.2,
        max_turns: Annotated[int, Field(ge=0)] = 0,
    ) -> None:
        """length: cells from coin to treasure; start: cells from coin to start; coin: its reward;
        max_turns: 0 means two for each cell from start to treasure."""
        if start >= length:
            raise ValueError(f"start is {start}, not before the treasure at length {length}")
        self.length, self.start, self.coin = length, start, coin
        self.max_turns = max_turns or 2 * (length - start)
        if self.max_turns < length - start:
            raise ValueError(f"max_turns is {max_turns}; the treasure is {length - start} cells away")

    def tasks(self, split: str) -> list[dict[str, Any]]:
        return draw_tasks(self._draw, split=split, seed=f"corridor {self.length}")

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        self.signs, self.at = task["signs"], self.start
        self.seen = {self.at}
        return self._look()

    def act(self, move: str) -> Reply:
        self.at += 1 if move == self._way() else -1
        self.seen.add(self.at)
        metrics = {"position": float(self.at), "distinct_states": float(len(self.seen))}
        if self.at == self.length:
            return Reply("treasure", reward=1.0, done=True, metrics=metrics)
        if self.at == 0:
            return Reply("coin", reward=self.coin, done=True, metrics=metrics)
        return Reply(self._look(), metrics=metrics)

    def solve(self) -> str:
        return self._way()

    def _way(self) -> str:
        """The move ahead. A subclass may solve otherwise; the corridor stays the same."""
        return self.actions[pair_at(self.at, length=self.length).index(self._sign())]

    def _sign(self) -> str:
        return str(self.signs[self.at - 1])

    def _look(self) -> str:
        return f"cell {self.at} {self._sign()}"

    def _draw(self, rng: random.Random) -> dict[str, Any]:
        return {"signs": [rng.choice(pair_at(cell, length=self.length)) for cell in range(1, self.length)]}


def pair_at(cell: int, *, length: int) -> tuple[str, str]:
    """The two signs that may hang in a cell."""
    return SIGNS[(cell - 1) * len(SIGNS) // (length - 1)]
