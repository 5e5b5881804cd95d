"""Tasks drawn at random.

Promise: the same tasks in any process, no two alike, and none of them in two splits.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from functools import cache, partial
from typing import Any

SIZES = {"train": 1000, "dev": 100, "test": 200}
NUM_DEV = SIZES["dev"]
_SHARES = ("train", "train", "train", "dev", "test")
_PATIENCE = 300
"""A search for tasks ends after this many draws in a row without a new one."""

Row = dict[str, Any]
Draw = Callable[[random.Random], Row]


def draw_tasks(
    draw: Draw, *, split: str, seed: str, apart: str = "", num_dev: int = 0, spare: Draw | None = None
) -> list[Row]:
    """Distinct tasks of one split. If `draw` gives too few, a fifth of them are for testing.

    apart: a key of the tasks; no value of it is in two splits. num_dev: dev tasks taken before
    train; if 0, dev gets what train and test leave, and then what `spare` draws: neighbours of the
    tasks, for a world so small that nothing is left."""
    rng = random.Random(seed)  # a str seed is hashed with SHA-512, so it does not depend on the process
    distinct = _distinct(draw, rng, count=SIZES["train"] + SIZES["test"] + num_dev)
    by_key: dict[str, list[Row]] = {}
    for task in distinct:
        by_key.setdefault(_key(task, apart), []).append(task)
    wanted = {"test": min(SIZES["test"], max(1, len(distinct) // 5)), "dev": num_dev, "train": len(distinct)}
    splits: dict[str, list[Row]] = {name: [] for name in wanted}
    for tasks in by_key.values():
        splits[next(name for name in wanted if len(splits[name]) < wanted[name])] += tasks
    if split == "dev" and not num_dev:
        left = _distinct(draw, rng, count=NUM_DEV, new=lambda task: _key(task, apart) not in by_key)
        known = by_key.keys() | {_key(task, apart) for task in left}
        missing = NUM_DEV - len(left) if spare else 0
        return left + _distinct(spare or draw, rng, count=missing, new=lambda task: _key(task, apart) not in known)
    return splits.get(split, [])


@cache
def draw_split(draw: Callable[..., Row], *, split: str, seed: str, apart: str = "") -> list[Row]:
    """Distinct tasks of one split from `draw(rng, split=split)`, without drawing the other splits.

    apart: a key of the tasks; no value of it is in two splits. If empty, `draw` sees to that."""
    rng = random.Random(f"{seed} {split}")

    def new(task: Row) -> bool:
        return not apart or split_of(_key(task, apart), seed=seed) == split

    return _distinct(partial(draw, split=split), rng, count=SIZES.get(split, 0), new=new)


def split_of(key: str, *, seed: str) -> str:
    """The split that owns a key: train owns three fifths of all keys, dev and test a fifth each."""
    return _SHARES[hashlib.sha256(f"{seed}\x1f{key}".encode()).digest()[0] % len(_SHARES)]


def _distinct(
    draw: Draw, rng: random.Random, *, count: int, new: Callable[[Row], bool] = lambda task: True
) -> list[Row]:
    """Up to `count` tasks, no two alike, of those that are `new`."""
    found: dict[str, Row] = {}
    misses = 0
    while len(found) < count and misses < _PATIENCE:
        task = draw(rng)
        size = len(found)
        if new(task):
            found.setdefault(json.dumps(task, sort_keys=True), task)
        misses = 0 if len(found) > size else misses + 1
    return list(found.values())


def _key(task: Row, apart: str) -> str:
    """Identifies what must be in one split only."""
    return str(task[apart]) if apart else json.dumps(task, sort_keys=True)
