"""Environments as an author would write them, sound and unsound."""

import asyncio
import random
from enum import Enum
from typing import Annotated, Literal

from ludus.environments import Reply, tool
from ludus.types import ToolCall


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Adder:
    """Add the numbers."""

    max_turns = 3

    def tasks(self, split):
        return [{"a": a, "b": 1} for a in (range(8) if split == "train" else range(8, 10))]

    def setup(self, task, rng):
        self.sum = task["a"] + task["b"]
        return f"{task['a']} and {task['b']}"

    @tool
    def answer(self, value: int):
        """Give the sum."""
        return Reply("right", reward=1, done=True) if value == self.sum else "wrong"

    @tool
    def note(self, text: str, times: int = 1) -> str:
        """Write something down.

        text: what to write
        """
        return text * times

    def solve(self):
        return ToolCall("answer", {"value": self.sum})


class AsyncAdder(Adder):
    """Add the numbers."""

    @tool
    async def answer(self, value: int):
        """Give the sum."""
        await asyncio.sleep(0)
        return Reply("right", reward=1, done=True) if value == self.sum else "wrong"

    async def close(self):
        await asyncio.sleep(0)


class Echo:
    """Say the word."""

    max_turns = 2
    actions = ("red", "blue")
    tasks = {"train": [{"word": "red"}], "test": [{"word": "blue"}]}

    def __init__(self, *, loud: bool = False, width: int = 3) -> None:
        if width < 1:
            raise ValueError("width must be positive")
        self.loud = loud

    def setup(self, task, rng):
        self.word = task["word"]
        return self.word.upper() if self.loud else self.word

    def act(self, text):
        return Reply("end", reward=float(text == self.word), done=True)

    def solve(self):
        return self.word


class Typed(Adder):
    """One tool with every kind of argument."""

    @tool
    def mix(
        self,
        number: Annotated[int, "how many"],
        share: float,
        mode: Literal["fast", "slow"],
        colour: Colour,
        names: list[str],
        table: dict[str, int],
        maybe: int | None = None,
        sure: bool = True,
    ) -> str:
        """Mix.

        Args:
            share: how much
        """
        return f"{number} {share} {mode} {colour.name} {names} {table} {maybe} {sure}"


class SeedInPrompt(Echo):
    """The first prompt depends on the attempt."""

    def setup(self, task, rng):
        super().setup(task, rng)
        return f"{self.word} {rng.random()}"


class GlobalRandom(Echo):
    """Draws from everybody's generator."""

    def act(self, text):
        random.random()
        return super().act(text)


class HashSeed(Echo):
    """Its words come in the order of a set."""

    def setup(self, task, rng):
        super().setup(task, rng)
        return " ".join({"alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"})


class Overlap(Echo):
    """The same tasks in both splits."""

    tasks = {"train": [{"word": "red"}], "test": [{"word": "red"}]}


class Forgetful(Echo):
    """Every session of the process changes the next."""

    count = 0

    def act(self, text):
        type(self).count += 1
        return Reply(f"end {self.count}", done=True)
