"""Sokoban: push every box onto a goal.

Boxes are pushed, never pulled, one at a time. Levels are made by playing backwards from the solved
state, so each can be solved within `max_turns`. Maps use the usual signs (# wall, - floor, . goal,
$ box, * box on a goal, @ player, + player on a goal). For each move, `hints` show the number of
moves left after it, "stuck" if the level cannot be solved any more, or "wall" if nothing moves.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, permutations
from typing import Annotated, Any

from pydantic import Field

from ludus.environments import Reply
from ludus.worlds.drawing import draw_tasks
from ludus.worlds.grid import MOVES, Cell, beside, distances

_NEVER = 1 << 20
_PATIENCE = 100_000
"""States after which a search is given up: more than any level made here needs."""


@dataclass(frozen=True)
class Level:
    size: int
    floor: frozenset[Cell]
    goals: frozenset[Cell]


@dataclass(frozen=True)
class State:
    player: Cell
    boxes: frozenset[Cell]


class Sokoban:
    """You are @. Push every box $ onto a goal: up, down, left or right."""

    capabilities = ("planning",)
    actions = tuple(MOVES)

    def __init__(
        self,
        *,
        size: Annotated[int, Field(ge=4, le=9)] = 5,
        boxes: Annotated[int, Field(ge=1, le=3)] = 1,
        pulls: Annotated[int, Field(ge=1)] = 3,
        walls: Annotated[int, Field(ge=0)] = 4,
        hints: bool = True,
        max_turns: Annotated[int, Field(ge=0)] = 0,
    ) -> None:
        """size: cells each way; pulls: of each box away from its goal; hints: show what each move
        leads to (one box only); max_turns: 0 means four for each pull."""
        if walls > size * size // 4:
            raise ValueError(f"walls is {walls}; a level of size {size} has room for {size * size // 4}")
        if hints and boxes > 1:
            raise ValueError(f"hints is on and boxes is {boxes}; hints need a single box: set hints = false")
        self.size, self.boxes, self.pulls, self.walls, self.hints = size, boxes, pulls, walls, hints
        self.max_turns = max_turns or 4 * boxes * pulls

    def tasks(self, split: str) -> list[dict[str, Any]]:
        seed = f"sokoban {self.size} {self.boxes} {self.pulls} {self.walls} {self.max_turns}"
        return draw_tasks(self._draw, split=split, seed=seed)

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        self.level, self.state = read(task["map"])
        self.way: tuple[str, ...] = ()
        return self._look()

    def act(self, move: str) -> Reply:
        before, self.state = self.state, after(self.level, self.state, move)
        self.way = self.way[1:] if self.way[:1] == (move,) else ()
        if self.state.boxes == self.level.goals:
            return Reply("solved", reward=1.0, done=True)
        blocked = "blocked\n" if self.state == before and not self.hints else ""
        return Reply(f"{blocked}{self._look()}")

    def solve(self) -> str:
        self.way = self.way or solution(self.level, self.state) or tuple(MOVES)
        return self.way[0]

    def _look(self) -> str:
        rows = " ".join(draw(self.level, self.state))
        return f"{rows}\n{' '.join(f'{move} {self._see(move)}' for move in MOVES)}" if self.hints else rows

    def _see(self, move: str) -> str:
        new = after(self.level, self.state, move)
        way = solution(self.level, new)
        return "wall" if new == self.state else "stuck" if way is None else str(len(way))

    def _draw(self, rng: random.Random) -> dict[str, Any]:
        while True:
            cells = [(row, column) for row in range(self.size) for column in range(self.size)]
            chosen = rng.sample(cells, self.walls + self.boxes)
            walls, goals = chosen[: self.walls], chosen[self.walls :]
            level = Level(self.size, frozenset(cells).difference(walls), frozenset(goals))
            state = play_backwards(level, pulls=self.pulls * self.boxes, max_moves=self.max_turns, rng=rng)
            if state:
                return {"map": draw(level, state)}


def after(level: Level, state: State, move: str) -> State:
    """The state after a move; unchanged if the way is blocked."""
    to, beyond = beside(state.player, move), beside(state.player, move, times=2)
    if to not in level.floor:
        return state
    if to not in state.boxes:
        return State(to, state.boxes)
    if beyond not in level.floor or beyond in state.boxes:
        return state
    return State(to, state.boxes - {to} | {beyond})


def play_backwards(level: Level, *, pulls: int, max_moves: int, rng: random.Random) -> State | None:
    """A start from which `max_moves` solve the level, or None if nothing can be pulled.

    No arrangement of the boxes comes twice, or most pulls would only undo others."""
    state, moves_left, seen = None, max_moves, {level.goals}
    for _ in range(pulls):
        possible = [(new, cost) for new, cost in pulled(level, state) if new.boxes not in seen and cost <= moves_left]
        if not possible:
            break
        state, cost = rng.choice(possible)
        moves_left -= cost
        seen.add(state.boxes)
    if state is None:
        return None
    return State(rng.choice([cell for cell, moves in _walks(level, state).items() if moves <= moves_left]), state.boxes)


def pulled(level: Level, state: State | None) -> list[tuple[State, int]]:
    """Every pull of a box with its number of moves, including the walk to the box.

    No state stands for the solved level, with the player wherever a pull begins."""
    boxes = state.boxes if state else level.goals
    walks = _walks(level, state) if state else dict.fromkeys(level.floor - boxes, 0)
    found = []
    for box in sorted(boxes):
        for move in MOVES:
            stand, end = beside(box, move), beside(box, move, times=2)
            if stand in walks and end in level.floor and end not in boxes:
                found.append((State(end, boxes - {box} | {stand}), walks[stand] + 1))
    return found


@lru_cache(maxsize=65536)
def solution(level: Level, state: State) -> tuple[str, ...] | None:
    """The shortest solution by A*, or None. Heuristic: the pushes that each box alone needs."""
    order, moves = count(), {state: 0}
    frontier = [(_least(level, state.boxes), next(order), state)]
    came: dict[State, tuple[State, str] | None] = {state: None}
    while frontier and len(moves) < _PATIENCE:
        least, _, here = heapq.heappop(frontier)
        if here.boxes == level.goals:
            return _path(here, came)
        if least >= _NEVER:
            return None
        for move in MOVES:
            new = after(level, here, move)
            if moves[here] + 1 < moves.get(new, _NEVER):
                moves[new], came[new] = moves[here] + 1, (here, move)
                heapq.heappush(frontier, (moves[new] + _least(level, new.boxes), next(order), new))
    return None


def read(rows: list[str]) -> tuple[Level, State]:
    def cells(signs: str) -> frozenset[Cell]:
        return frozenset((r, c) for r, row in enumerate(rows) for c, sign in enumerate(row) if sign in signs)

    level = Level(len(rows), floor=cells("-.$*@+"), goals=cells(".*+"))
    return level, State(min(cells("@+")), boxes=cells("$*"))


def draw(level: Level, state: State) -> list[str]:
    def sign(cell: Cell) -> str:
        if cell not in level.floor:
            return "#"
        free, on_goal = "$*" if cell in state.boxes else "@+" if cell == state.player else "-."
        return on_goal if cell in level.goals else free

    return ["".join(sign((row, column)) for column in range(level.size)) for row in range(level.size)]


@lru_cache(maxsize=4096)
def _pushes(level: Level) -> list[dict[Cell, int]]:
    """For each goal, the pushes that a box alone needs from each cell, if it can get there."""

    def can_be_pulled(box: Cell, move: str) -> bool:
        return beside(box, move) in level.floor and beside(box, move, times=2) in level.floor

    return [distances(goal, is_open=can_be_pulled) for goal in sorted(level.goals)]


@lru_cache(maxsize=1 << 17)
def _least(level: Level, boxes: frozenset[Cell]) -> int:
    """A lower bound of the pushes left, over all assignments of boxes to goals."""
    pushes = _pushes(level)
    return min(sum(to.get(box, _NEVER) for to, box in zip(pushes, order, strict=True)) for order in permutations(boxes))


def _path(state: State, came: dict[State, tuple[State, str] | None]) -> tuple[str, ...]:
    moves: list[str] = []
    while last := came[state]:
        state, move = last
        moves.append(move)
    return tuple(reversed(moves))


def _walks(level: Level, state: State) -> dict[Cell, int]:
    """Moves to every cell that the player reaches without touching a box."""
    empty = level.floor - state.boxes
    return distances(state.player, is_open=lambda cell, move: beside(cell, move) in empty)
