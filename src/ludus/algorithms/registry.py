"""Decorators that make a function a piece of an algorithm.

With a name the piece is registered under it; without one, a run file names it by its import path.
The keyword arguments are the traits of `Advantage` and `Filter` in `ludus.config.pieces`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from ludus.config.pieces import KINDS

F = TypeVar("F", bound=Callable[..., Any])


def piece(kind: str, name: str = "", **traits: Any) -> Callable[[F], F]:
    def register(function: F) -> F:
        function.__ludus_traits__ = traits  # type: ignore[attr-defined]
        if name:
            KINDS[kind].add(name, function)
        return function

    return register


advantage = partial(piece, "advantage")
loss = partial(piece, "loss")
group_filter = partial(piece, "filter")
reward = partial(piece, "rewards")
