"""FrozenLake as text: walk from the top left to the bottom right over ice, around the holes.

The first observation shows the map (S start, F ice, H hole, G goal); every one gives the walker's
cell and its four neighbours: for ice, the number of moves from there to the goal. With `hints` off,
ice is just ice and the way must be planned.
"""

from __future__ import annotations

import math
import random
from functools import lru_cache, partial
from typing import Annotated, Any

from pydantic import Field

from ludus.environments import Reply
from ludus.worlds.drawing import draw_tasks
from ludus.worlds.grid import MOVES, Cell, beside, inside
from ludus.worlds.grid import distances as moves_from

SIDES = {"up": ("left", "right"), "down": ("left", "right"), "left": ("up", "down"), "right": ("up", "down")}
_HURRY = 0.999
_WORDS = {"F": "ice", "S": "ice", "H": "hole", "G": "goal", "#": "wall"}


class FrozenLake:
    """Walk to the goal: up, down, left or right."""

    capabilities = ("planning",)
    actions = tuple(MOVES)

    def __init__(
        self,
        *,
        size: Annotated[int, Field(ge=2, le=30)] = 4,
        holes: Annotated[int, Field(ge=0)] = 4,
        slippery: Annotated[float, Field(ge=0, le=1)] = 0.0,
        hints: bool = True,
        max_turns: Annotated[int, Field(ge=0)] = 0,
    ) -> None:
        """slippery: chance to slide sideways; hints: show the distance to the goal each way;
        max_turns: 0 means three for each row but one."""
        if holes > (size - 1) ** 2:
            raise ValueError(f"holes is {holes}; a lake of size {size} has room for {(size - 1) ** 2}")
        self.size, self.holes, self.slippery, self.hints = size, holes, slippery, hints
        self.max_turns = max_turns or round(3 * (size - 1) * (1 + 2 * slippery))

    def tasks(self, split: str) -> list[dict[str, Any]]:
        spare = partial(self._draw, holes=self.holes - 1) if self.holes else None
        seed = f"frozen_lake {self.size} {self.holes}"
        return draw_tasks(partial(self._draw, holes=self.holes), split=split, seed=seed, spare=spare)

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        self.rows, self.rng, self.at, self.turns_left = task["map"], rng, (0, 0), self.max_turns
        self.steps_left = distances(self.rows) if self.hints else {}
        return f"{' '.join(self.rows)}\n{self._look()}"

    def act(self, text: str) -> Reply:
        slides = self.slippery and self.rng.random() < self.slippery
        self.at = after(self.at, self.rng.choice(SIDES[text]) if slides else text, size=self.size)
        self.turns_left -= 1
        found = _WORDS[self._cell(self.at)]
        if found in ("goal", "hole"):
            return Reply(found, reward=float(found == "goal"), done=True)
        return Reply(self._look())

    def solve(self) -> str:
        by_turns = chances(tuple(self.rows), slippery=self.slippery, max_turns=self.max_turns)
        worth = by_turns[max(0, self.turns_left - 1)]
        return max(MOVES, key=lambda move: expected(self.at, move, worth=worth, slippery=self.slippery))

    def _cell(self, cell: Cell) -> str:
        return self.rows[cell[0]][cell[1]] if inside(cell, size=self.size) else "#"

    def _look(self) -> str:
        return f"at {self.at[0]} {self.at[1]} {' '.join(f'{m} {self._see(beside(self.at, m))}' for m in MOVES)}"

    def _see(self, cell: Cell) -> str:
        word = _WORDS[self._cell(cell)]
        return str(self.steps_left.get(cell, word)) if word == "ice" else word

    def _draw(self, rng: random.Random, *, holes: int) -> dict[str, Any]:
        while True:
            cells = ["S", *"F" * (self.size**2 - 2), "G"]
            for index in rng.sample(range(1, self.size**2 - 1), holes):
                cells[index] = "H"
            rows = ["".join(cells[i : i + self.size]) for i in range(0, self.size**2, self.size)]
            if (0, 0) in distances(rows):
                return {"map": rows}


def after(cell: Cell, move: str, *, size: int) -> Cell:
    new = beside(cell, move)
    return new if inside(new, size=size) else cell


def distances(rows: list[str]) -> dict[Cell, int]:
    """Moves to the goal, from every cell that can reach it."""
    dry = {(row, column) for row, signs in enumerate(rows) for column, sign in enumerate(signs) if sign != "H"}
    return moves_from((len(rows) - 1, len(rows) - 1), is_open=lambda cell, move: beside(cell, move) in dry)


@lru_cache(maxsize=4096)
def chances(rows: tuple[str, ...], *, slippery: float, max_turns: int) -> list[dict[Cell, float]]:
    """The best success probability by turns left and cell, discounted by _HURRY a turn."""
    cells = [(row, column) for row in range(len(rows)) for column in range(len(rows))]
    by_turns = [{cell: float(rows[cell[0]][cell[1]] == "G") for cell in cells}]
    for _ in range(max_turns):
        best = dict(by_turns[0])
        for cell in cells:
            if rows[cell[0]][cell[1]] in "SF":
                best[cell] = _HURRY * max(expected(cell, move, worth=by_turns[-1], slippery=slippery) for move in MOVES)
        by_turns.append(best)
    return by_turns


def expected(cell: Cell, move: str, *, worth: dict[Cell, float], slippery: float) -> float:
    size = math.isqrt(len(worth))
    straight = worth[after(cell, move, size=size)]
    if not slippery:
        return straight
    aside = sum(worth[after(cell, side, size=size)] for side in SIDES[move]) / 2
    return (1 - slippery) * straight + slippery * aside
