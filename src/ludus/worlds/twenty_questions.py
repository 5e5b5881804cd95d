"""Twenty questions: which of the things is it?

An oracle answers by rule. The prompt lists the things with their attributes; `ask` is answered with
yes or no and, with `hints`, the things left. `answer` ends the session: 1 for the right thing, else
0. Asking the question that best halves the rest always wins within `max_turns`.
"""

from __future__ import annotations

import itertools
import random
from typing import Annotated, Any

from pydantic import Field

from ludus.environments import Reply, tool
from ludus.types import ToolCall
from ludus.worlds.drawing import draw_tasks
from ludus.worlds.files import word_lists

ATTRIBUTES = word_lists("twenty_questions_attributes")
NAMES = tuple(word_lists("twenty_questions")["names"])
Things = dict[str, list[str]]


class TwentyQuestions:
    """Which thing is it? Ask, then answer."""

    capabilities = ("reasoning", "memory", "tool use")
    lists_answers = True

    def __init__(
        self,
        *,
        things: Annotated[int, Field(ge=2, le=36)] = 8,
        attributes: Annotated[int, Field(ge=1, le=4)] = 3,
        hints: bool = True,
        max_turns: Annotated[int, Field(ge=0)] = 0,
    ) -> None:
        """things: to choose from; attributes: colour, size, shape, weight, so many of them; hints:
        list what is left; max_turns: 0 means what halving needs, one to answer, and one spare."""
        self.attributes = list(ATTRIBUTES)[:attributes]
        self.kinds = [list(values) for values in itertools.product(*(ATTRIBUTES[name] for name in self.attributes))]
        if things > len(self.kinds):
            raise ValueError(f"things is {things}; with attributes {attributes} only {len(self.kinds)} can differ")
        least = (things - 1).bit_length() + 1
        if 0 < max_turns < least:
            raise ValueError(f"max_turns is {max_turns}; to tell {things} things apart and answer takes {least}")
        self.num_things, self.hints, self.max_turns = things, hints, max_turns or least + 1

    def tasks(self, split: str) -> list[dict[str, Any]]:
        seed = f"twenty_questions {self.num_things} {len(self.attributes)} {self.max_turns}"
        return draw_tasks(self._draw, split=split, seed=seed)

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        self.things: Things = task["things"]
        self.secret, self.left = task["secret"], list(task["things"])
        return ", ".join(f"{name} {' '.join(values)}" for name, values in self.things.items())

    @tool
    def ask(self, attribute: str, value: str) -> Reply:
        """Is it so?"""
        if attribute not in self.attributes:
            return Reply(f"no attribute {attribute[:20]}. {', '.join(self.attributes)}", invalid=True)
        if value not in ATTRIBUTES[attribute]:
            return Reply(f"no {attribute} {value[:20]}. {', '.join(ATTRIBUTES[attribute])}", invalid=True)
        column = self.attributes.index(attribute)
        true = self.things[self.secret][column] == value
        self.left = [name for name in self.left if (self.things[name][column] == value) == true]
        word = "yes" if true else "no"
        return Reply(f"{word}, left {', '.join(self.left)}" if self.hints else word)

    @tool
    def answer(self, name: str) -> Reply:
        """Finish."""
        if name not in self.things:
            return Reply(f"no thing {name[:20]}", invalid=True)
        right = name == self.secret
        return Reply("right" if right else "wrong", reward=float(right), done=True)

    def solve(self) -> ToolCall:
        if len(self.left) == 1:
            return ToolCall("answer", {"name": self.left[0]})
        column, value = best_question(self.things, self.left)
        return ToolCall("ask", {"attribute": self.attributes[column], "value": value})

    def random_action(self, rng: random.Random) -> ToolCall:
        if rng.random() < 0.5:
            return ToolCall("answer", {"name": rng.choice(list(self.things))})
        attribute = rng.choice(self.attributes)
        return ToolCall("ask", {"attribute": attribute, "value": rng.choice(ATTRIBUTES[attribute])})

    def _draw(self, rng: random.Random) -> dict[str, Any]:
        while True:
            names = sorted(rng.sample(NAMES, self.num_things))
            things = dict(zip(names, rng.sample(self.kinds, self.num_things), strict=True))
            secret = rng.choice(names)
            if questions_needed(things, secret=secret) < self.max_turns:
                return {"things": things, "secret": secret}


def best_question(things: Things, left: list[str]) -> tuple[int, str]:
    """The (column, value) that divides what is left most evenly."""
    questions = dict.fromkeys((column, value) for name in left for column, value in enumerate(things[name]))

    def larger_part(question: tuple[int, str]) -> int:
        yes = sum(things[name][question[0]] == question[1] for name in left)
        return max(yes, len(left) - yes)

    return min(questions, key=larger_part)


def questions_needed(things: Things, *, secret: str) -> int:
    left, number = list(things), 0
    while len(left) > 1:
        column, value = best_question(things, left)
        true = things[secret][column] == value
        left = [name for name in left if (things[name][column] == value) == true]
        number += 1
    return number
