"""FrozenLake as text: walk from the top left to the bottom right over ice, around the holes. The model answers with one word.

The map is told once (S start, F ice, H hole, G goal); every observation repeats where the walker is and what lies around it.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Annotated, Any

from pydantic import Field

from ludus.environments import Reply
from ludus.worlds.drawing import draw_tasks

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
_WORDS = {"F": "ice", "S": "ice", "H": "hole", "G": "goal", "#": "wall"}
Cell = tuple[int, int]


class FrozenLake:
    """Walk to the goal: up, down, left or right."""

    actions = tuple(MOVES)

    def __init__(
        self,
        *,
        size: Annotated[int, Field(ge=2, le=30)] = 4,
        holes: Annotated[int, Field(ge=0)] = 4,
        slippery: Annotated[float, Field(ge=0, le=1)] = 0.0,
        max_turns: Annotated[int, Field(ge=0)] = 0,
    ) -> None:
        """slippery: chance to slide to a side; max_turns: 0 is half as many again as the longest straight way needs."""
        if holes > (size - 1) ** 2:
            raise ValueError(f"holes is {holes}; a lake of size {size} has room for {(size - 1) ** 2}")
        self.size, self.holes, self.slippery = size, holes, slippery
        self.max_turns = max_turns or round(3 * (size - 1) * (1 + 2 * slippery))

    def tasks(self, split: str) -> list[dict[str, Any]]:
        return draw_tasks(self._draw, split=split, seed=f"frozen_lake {self.size} {self.holes}")

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        self.rows, self.rng, self.at = task["map"], rng, (0, 0)
        return f"{' '.join(self.rows)}\n{self._look()}"

    def act(self, text: str) -> Reply:
        self.at = self._neighbour(self.at, self._slide(text))
        found = self._cell(self.at)
        if found == "G":
            return Reply("goal", reward=1.0, done=True)
        if found == "H":
            return Reply("hole", done=True)
        return Reply(self._look())

    def solve(self) -> str:
        """The first move of a shortest way; where the ice is slippery, that is a good move rather than the best."""
        distance = distances(self.rows)
        return min(MOVES, key=lambda move: distance.get(self._neighbour(self.at, move), self.size**2))

    def _slide(self, move: str) -> str:
        if self.slippery and self.rng.random() < self.slippery:
            return self.rng.choice(("left", "right") if move in ("up", "down") else ("up", "down"))
        return move

    def _neighbour(self, cell: Cell, move: str) -> Cell:
        row, column = cell[0] + MOVES[move][0], cell[1] + MOVES[move][1]
        return (row, column) if self._cell((row, column)) != "#" else cell

    def _cell(self, cell: Cell) -> str:
        inside = all(0 <= part < self.size for part in cell)
        return self.rows[cell[0]][cell[1]] if inside else "#"

    def _look(self) -> str:
        row, column = self.at
        around = [f"{move} {_WORDS[self._cell((row + down, column + right))]}" for move, (down, right) in MOVES.items()]
        return f"at {row} {column}, {', '.join(around)}"

    def _draw(self, rng: random.Random) -> dict[str, Any]:
        while True:
            cells = ["S", *"F" * (self.size**2 - 2), "G"]
            for index in rng.sample(range(1, self.size**2 - 1), self.holes):
                cells[index] = "H"
            rows = ["".join(cells[i : i + self.size]) for i in range(0, self.size**2, self.size)]
            if (0, 0) in distances(rows):
                return {"map": rows}


def distances(rows: list[str]) -> dict[Cell, int]:
    """Moves to the goal from every cell that is not a hole and can reach it."""
    goal = (len(rows) - 1, len(rows) - 1)
    found, queue = {goal: 0}, deque([goal])
    while queue:
        cell = queue.popleft()
        for down, right in MOVES.values():
            row, column = cell[0] + down, cell[1] + right
            if (
                0 <= row < len(rows)
                and 0 <= column < len(rows)
                and (row, column) not in found
                and rows[row][column] != "H"
            ):
                found[row, column] = found[cell] + 1
                queue.append((row, column))
    return found
