"""Countdown: make the target from the numbers, each used once at most, with + - * / and brackets.

An answer is an expression; its value takes the place of the numbers in it, so `3*(8-2)` may be said
at once, or as `8-2` and then `3*6`. As on television, every intermediate value is a whole number
above zero. The session ends at the target, or when a single number is left. What the model writes
is parsed and walked, never evaluated as code.
"""

from __future__ import annotations

import ast
import random
import re
from collections import Counter
from functools import lru_cache
from itertools import combinations
from typing import Annotated, Any

from pydantic import Field

from ludus.environments import Reply
from ludus.worlds.drawing import draw_tasks

_EXPRESSION = re.compile(r"[0-9+*/() -]{1,80}")
_SIGNS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
Numbers = tuple[int, ...]


class BadExpression(ValueError):
    """The message, one short line, is shown to the model."""


class Countdown:
    """Make the target from the numbers: + - * /"""

    capabilities = ("reasoning",)

    def __init__(
        self,
        *,
        numbers: Annotated[int, Field(ge=2, le=5)] = 3,
        largest: Annotated[int, Field(ge=2, le=100)] = 9,
        target: Annotated[int, Field(ge=10, le=1000)] = 50,
        max_turns: Annotated[int, Field(ge=0)] = 0,
    ) -> None:
        """largest: of the numbers; target: the largest; max_turns: 0 means one for each number."""
        if 0 < max_turns < numbers - 1:
            raise ValueError(f"max_turns is {max_turns}; {numbers} numbers take {numbers - 1} operations")
        self.numbers, self.largest, self.highest = numbers, largest, target
        self.max_turns = max_turns or numbers

    def tasks(self, split: str) -> list[dict[str, Any]]:
        return draw_tasks(self._draw, split=split, seed=f"countdown {self.numbers} {self.largest} {self.highest}")

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        self.left, self.target = tuple(task["numbers"]), task["target"]
        return self._look()

    def act(self, text: str) -> Reply:
        try:
            value, used = evaluate(text)
            self.left = replaced(self.left, used=used, value=value)
        except BadExpression as error:
            return Reply(f"{error}. {self._look()}", invalid=True)
        if value == self.target:
            return Reply("right", reward=1.0, done=True)
        return Reply("wrong", done=True) if len(self.left) == 1 else Reply(self._look())

    def solve(self) -> str:
        """The next operation of the shortest solution, or any operation if there is none."""
        way = shortest(self.left, self.target)
        return way[0] if way else operations(self.left)[0][0]

    def random_action(self, rng: random.Random) -> str:
        return rng.choice(operations(self.left))[0]

    def _look(self) -> str:
        return f"{' '.join(map(str, self.left))} make {self.target}"

    def _draw(self, rng: random.Random) -> dict[str, Any]:
        while True:
            numbers = left = tuple(sorted(rng.randint(1, self.largest) for _ in range(self.numbers)))
            while len(left) > 1:
                left = rng.choice(operations(left))[2]
            if left[0] <= self.highest and left[0] not in numbers:
                return {"numbers": list(numbers), "target": left[0]}


def evaluate(text: str) -> tuple[int, Counter[int]]:
    if not _EXPRESSION.fullmatch(text):
        raise BadExpression("say an expression")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise BadExpression("cannot be read") from None
    if not isinstance(tree, ast.BinOp):
        raise BadExpression("say an operation")
    used: Counter[int] = Counter()
    return _value(tree, used), used


def _value(node: ast.expr, used: Counter[int]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        used[node.value] += 1
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
        one, other, sign = _value(node.left, used), _value(node.right, used), _SIGNS[type(node.op)]
        value = combine(one, sign, other)
        if value is None:
            raise BadExpression(f"{one}{sign}{other} is no whole number above 0")
        return value
    raise BadExpression("only + - * / and brackets")


def combine(one: int, sign: str, other: int) -> int | None:
    """None if the value is not a whole number above zero."""
    if sign == "/":
        return one // other if other and one % other == 0 and one else None
    value = one + other if sign == "+" else one - other if sign == "-" else one * other
    return value if value > 0 else None


def replaced(left: Numbers, *, used: Counter[int], value: int) -> Numbers:
    """The numbers left, sorted, once `used` became `value`."""
    if missing := used - Counter(left):
        raise BadExpression(f"no {min(missing)}" if min(missing) not in left else f"too many {min(missing)}")
    return tuple(sorted([*(Counter(left) - used).elements(), value]))


def operations(left: Numbers) -> list[tuple[str, int, Numbers]]:
    """Every operation on two numbers, the larger first, with its value and the numbers left."""
    found: dict[str, tuple[str, int, Numbers]] = {}
    for one, other in combinations(range(len(left)), 2):
        large, small = max(left[one], left[other]), min(left[one], left[other])
        rest = left[:one] + left[one + 1 : other] + left[other + 1 :]
        for sign in _SIGNS.values():
            if (value := combine(large, sign, small)) is not None:
                said = f"{large}{sign}{small}"
                found[said] = said, value, tuple(sorted((*rest, value)))
    return list(found.values())


@lru_cache(maxsize=4096)
def shortest(left: Numbers, target: int) -> tuple[str, ...] | None:
    frontier: dict[Numbers, tuple[str, ...]] = {left: ()}
    while frontier:
        further: dict[Numbers, tuple[str, ...]] = {}
        for numbers, way in frontier.items():
            for said, value, new in operations(numbers):
                if value == target:
                    return (*way, said)
                further.setdefault(new, (*way, said))
        frontier = further
    return None
