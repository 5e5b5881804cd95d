"""A maze of rooms without a loop, from S to G.

`view = "map"` shows the whole maze once (o room, - and | open, . closed), "local" only where the
goal is. Every observation gives the walker's room and what lies around it: for an open way, the
number of moves from there to the goal, or without `hints` just "open". A wall stops a move.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from ludus.environments import Reply
from ludus.worlds.drawing import draw_tasks
from ludus.worlds.grid import MOVES, Cell, beside, inside
from ludus.worlds.grid import distances as moves_from

Rows = list[str]


class Maze:
    """Walk from S to G: up, down, left or right."""

    capabilities = ("planning", "memory")
    actions = tuple(MOVES)

    def __init__(
        self,
        *,
        size: Annotated[int, Field(ge=2, le=20)] = 4,
        view: Literal["map", "local"] = "map",
        hints: bool = True,
        max_turns: Annotated[int, Field(ge=0)] = 0,
    ) -> None:
        """size: rooms each way; view: how much is shown; hints: show the distance to the goal each
        way; max_turns: 0 means one for each room and one more for each row."""
        self.size, self.view, self.hints = size, view, hints
        self.max_turns = max_turns or size * (size + 1)

    def tasks(self, split: str) -> list[dict[str, Any]]:
        return draw_tasks(self._draw, split=split, seed=f"maze {self.size} {self.max_turns}")

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        self.rows = task["map"]
        self.at, self.goal = find(self.rows, "S"), find(self.rows, "G")
        self.moves_left = distances(self.rows, self.goal)
        told = " ".join(self.rows) if self.view == "map" else f"goal {self.goal[0]} {self.goal[1]}"
        return f"{told}\n{self._look()}"

    def act(self, move: str) -> Reply:
        if is_open(self.rows, self.at, move):
            self.at = beside(self.at, move)
        if self.at == self.goal:
            return Reply("goal", reward=1.0, done=True)
        return Reply(self._look())

    def solve(self) -> str:
        ways = [move for move in MOVES if is_open(self.rows, self.at, move)]
        return min(ways, key=lambda move: self.moves_left[beside(self.at, move)])

    def _look(self) -> str:
        return f"at {self.at[0]} {self.at[1]} {' '.join(f'{move} {self._see(move)}' for move in MOVES)}"

    def _see(self, move: str) -> str:
        if not is_open(self.rows, self.at, move):
            return "wall"
        return str(self.moves_left[beside(self.at, move)]) if self.hints else "open"

    def _draw(self, rng: random.Random) -> dict[str, Any]:
        """Start and goal are the ends of the maze's longest way, so no maze is in two splits."""
        rows = carve(self.size, rng=rng)
        start = _farthest(distances(rows, (0, 0)), within=self.size**2)
        goal = _farthest(distances(rows, start), within=self.max_turns)
        return {"map": _marked(_marked(rows, start, "S"), goal, "G")}


def carve(size: int, *, rng: random.Random) -> Rows:
    """A spanning tree by randomised depth-first search: exactly one way leads to each room."""
    side = 2 * size - 1
    drawn = [["o" if row % 2 == column % 2 == 0 else "." for column in range(side)] for row in range(side)]
    walked = [(rng.randrange(size), rng.randrange(size))]
    reached = set(walked)
    while walked:
        new = [move for move in MOVES if inside(room := beside(walked[-1], move), size=size) and room not in reached]
        if not new:
            walked.pop()
            continue
        move = rng.choice(new)
        row, column = _between(walked[-1], move)
        drawn[row][column] = "|" if move in ("up", "down") else "-"
        walked.append(beside(walked[-1], move))
        reached.add(walked[-1])
    return ["".join(row) for row in drawn]


def is_open(rows: Rows, room: Cell, move: str) -> bool:
    row, column = _between(room, move)
    return inside((row, column), size=len(rows)) and rows[row][column] in "-|"


def distances(rows: Rows, goal: Cell) -> dict[Cell, int]:
    return moves_from(goal, is_open=partial(is_open, rows))


def find(rows: Rows, mark: str) -> Cell:
    row = next(index for index, drawn in enumerate(rows) if mark in drawn)
    return row // 2, rows[row].index(mark) // 2


def _between(room: Cell, move: str) -> Cell:
    """The character of the map that shows whether a move is open."""
    return beside((2 * room[0], 2 * room[1]), move)


def _farthest(moves: dict[Cell, int], *, within: int) -> Cell:
    return max((room for room in moves if moves[room] <= within), key=lambda room: (moves[room], room))


def _marked(rows: Rows, room: Cell, mark: str) -> Rows:
    row, column = 2 * room[0], 2 * room[1]
    return [*rows[:row], rows[row][:column] + mark + rows[row][column + 1 :], *rows[row + 1 :]]
