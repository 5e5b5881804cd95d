"""A number-guessing game with one tool.

Bisection always wins within `max_turns`; a random player seldom does.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from ludus.environments import Reply, tool
from ludus.types import ToolCall
from ludus.worlds.drawing import draw_tasks


class Guess:
    """Find the number."""

    capabilities = ("reasoning", "tool use")
    lists_answers = True

    def __init__(
        self,
        *,
        numbers: Annotated[int, Field(ge=2)] = 9,
        largest: Annotated[int, Field(ge=2)] = 20,
        hints: bool = True,
        max_turns: Annotated[int, Field(ge=0)] = 0,
    ) -> None:
        """numbers: most candidates at the start; largest: number in any task; hints: list all
        candidates, not only the ends; max_turns: 0 means as many as bisection needs."""
        if largest < numbers:
            raise ValueError(f"largest is {largest}, below numbers {numbers}")
        self.numbers, self.largest, self.hints = numbers, largest, hints
        self.max_turns = max_turns or numbers.bit_length()

    def tasks(self, split: str) -> list[dict[str, Any]]:
        fewest = max(2, 2 * self.numbers // 3)
        spare = partial(self._draw, fewest=fewest - 1, most=fewest - 1) if fewest > 2 else None
        draw = partial(self._draw, fewest=fewest, most=self.numbers)
        return draw_tasks(draw, split=split, seed=f"guess {self.numbers} {self.largest}", spare=spare)

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        self.low, self.high, self.secret = task["low"], task["high"], task["secret"]
        return self._left()

    @tool
    def guess(self, number: int) -> Reply:
        """Guess."""
        if number == self.secret:
            return Reply("found", reward=1.0, done=True)
        if number < self.secret:
            self.low = max(self.low, number + 1)
            return Reply(f"higher, {self._left()}")
        self.high = min(self.high, number - 1)
        return Reply(f"lower, {self._left()}")

    def solve(self) -> ToolCall:
        return ToolCall("guess", {"number": (self.low + self.high) // 2})

    def random_action(self, rng: random.Random) -> ToolCall:
        return ToolCall("guess", {"number": rng.randint(1, self.largest)})

    def _left(self) -> str:
        if self.hints:
            return f"left {' '.join(map(str, range(self.low, self.high + 1)))}"
        return f"left {self.low} to {self.high}"

    def _draw(self, rng: random.Random, *, fewest: int, most: int) -> dict[str, Any]:
        candidates = rng.randint(fewest, most)
        low = rng.randint(1, self.largest - candidates + 1)
        high = low + candidates - 1
        return {"low": low, "high": high, "secret": rng.randint(low, high)}
