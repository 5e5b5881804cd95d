"""Cells and the four moves of worlds that are drawn as rows of characters."""

from __future__ import annotations

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
Cell = tuple[int, int]


def beside(cell: Cell, move: str, *, times: int = 1) -> Cell:
    return cell[0] + times * MOVES[move][0], cell[1] + times * MOVES[move][1]


def inside(cell: Cell, *, size: int) -> bool:
    return 0 <= cell[0] < size and 0 <= cell[1] < size
