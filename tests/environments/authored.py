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


class HashSeedInSandbox(HashSeed):
    """The same, with a sandbox."""

    sandbox = "process"


class Overlap(Echo):
    """The same tasks in both splits."""

    tasks = {"train": [{"word": "red"}], "test": [{"word": "red"}]}


class Forgetful(Echo):
    """Every session of the process changes the next."""

    count = 0

    def act(self, text):
        type(self).count += 1
        return Reply(f"end {self.count}", done=True)


class Numbers(Adder):
    """Twelve tasks, each with one right number that its prompt does not tell."""

    def tasks(self, split):
        return [
            {"a": a, "b": 100} for a in {"train": range(4), "dev": range(4, 8), "test": range(8, 12)}.get(split, ())
        ]


class PaysForSilence(Numbers):
    """Whoever says nothing is paid at the end."""

    turns = 0

    def say(self, text):
        self.turns += 1
        return Reply("hm", reward=float(self.turns == 3))


class PaysForNonsense(Numbers):
    """An unreadable answer counts as a good one."""

    def say(self, text):
        return Reply("what?", reward=0.1, invalid=True)


class PaysAnyAnswer(Numbers):
    """Whatever is answered is right."""

    @tool
    def answer(self, value: int):
        """Give the sum."""
        return Reply("right", reward=1, done=True)


class PaysEveryTime(Numbers):
    """A note pays whenever it is written."""

    max_turns = 6

    def setup(self, task, rng):
        self.noted = False
        return super().setup(task, rng)

    @tool
    def note(self, text: str, times: int = 1):
        """Write something down."""
        self.noted = True
        return Reply("noted", reward=0.5)

    @tool
    def answer(self, value: int):
        """Give the sum."""
        return Reply("right", reward=0.5, done=True, metrics={"success": 1.0}) if value == self.sum else "wrong"

    def solve(self):
        return super().solve() if self.noted else ToolCall("note", {"text": "a"})


class PaysToAndFro(Numbers):
    """Taking pays, and so does taking again after putting back; taking twice does not."""

    max_turns = 8

    def setup(self, task, rng):
        self.held = self.looked = False
        return super().setup(task, rng)

    @tool
    def look(self):
        """Look around; it puts back what is held."""
        self.looked, self.held = True, False
        return "a stone"

    @tool
    def note(self, text: str = "", times: int = 1):
        """Take the stone."""
        pays, self.held = not self.held and self.looked, True
        return Reply("taken", reward=0.5 * pays)

    @tool
    def answer(self, value: int):
        """Give the sum."""
        return Reply("right", reward=0.5, done=True, metrics={"success": 1.0}) if value == self.sum else "wrong"

    def solve(self):
        return super().solve() if self.held else ToolCall("note" if self.looked else "look", {})


class TellsItsAnswer(Numbers):
    """The prompt gives the sum away."""

    def setup(self, task, rng):
        return f"{super().setup(task, rng)}, which makes {self.sum}"


class ListsItsAnswers(TellsItsAnswer):
    """The prompt lists what may be answered, as it declares."""

    lists_answers = True


class SharesDev(Numbers):
    """Most dev tasks are test tasks."""

    def tasks(self, split):
        return super().tasks("test")[1:] if split == "dev" else super().tasks(split)


class FailsInDev(Numbers):
    """Only its dev tasks fail."""

    def setup(self, task, rng):
        if 4 <= task["a"] < 8:
            raise ValueError("a dev task")
        return super().setup(task, rng)
