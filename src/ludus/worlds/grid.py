"""Cells and the four moves of worlds that are drawn as rows of characters."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
Cell = tuple[int, int]


def beside(cell: Cell, move: str, *, times: int = 1) -> Cell:
    return cell[0] + times * MOVES[move][0], cell[1] + times * MOVES[move][1]


def inside(cell: Cell, *, size: int) -> bool:
    return 0 <= cell[0] < size and 0 <= cell[1] < size


def distances(start: Cell, *, is_open: Callable[[Cell, str], bool]) -> dict[Cell, int]:
    """Moves from `start` to every cell that can be reached, nearest first.

    is_open: whether a move from a cell leads to the cell beside it."""
    found, queue = {start: 0}, deque([start])
    while queue:
        cell = queue.popleft()
        for move in MOVES:
            if (new := beside(cell, move)) not in found and is_open(cell, move):
                found[new] = found[cell] + 1
                queue.append(new)
    return found
