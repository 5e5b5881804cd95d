"""Tasks drawn at random. Promise: the same in any process, no two alike, and none of them in two splits."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Container
from typing import Any

NUM_TRAIN = 1000
NUM_TEST = 200
NUM_DEV = 100
_PATIENCE = 300
"""Draws in a row that bring nothing new, after which there is taken to be no more."""


def draw_tasks(
    draw: Callable[[random.Random], dict[str, Any]],
    *,
    split: str,
    seed: str,
    apart: str = "",
    num_dev: int = 0,
    spare: Callable[[random.Random], dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """Distinct tasks of one split. Where `draw` cannot give enough, a fifth of what it can give is for testing.

    apart: a key of the tasks; no value of it is in two splits. num_dev: tasks that dev gets before train. Where it is 0, dev is what train
    and test have left, and then what `spare` gives: neighbours of the world's tasks, for a world so small that nothing is left.
    """
    rng = random.Random(seed)  # a str seed is hashed with SHA-512, so it does not depend on the process
    distinct = _distinct(draw, rng, count=NUM_TRAIN + NUM_TEST + num_dev)
    kept_together: dict[str, list[dict[str, Any]]] = {}
    for task in distinct:
        kept_together.setdefault(_key(task, apart), []).append(task)
    wanted = {"test": min(NUM_TEST, max(1, len(distinct) // 5)), "dev": num_dev, "train": len(distinct)}
    splits: dict[str, list[dict[str, Any]]] = {name: [] for name in wanted}
    for tasks in kept_together.values():
        splits[next(name for name in wanted if len(splits[name]) < wanted[name])] += tasks
    if split == "dev" and not num_dev:
        left = _distinct(draw, rng, count=NUM_DEV, apart=apart, besides=kept_together)
        known = {**kept_together, **dict.fromkeys(_key(task, apart) for task in left)}
        return left + (_distinct(spare, rng, count=NUM_DEV - len(left), apart=apart, besides=known) if spare else [])
    return splits.get(split, [])


def _distinct(
    draw: Callable[[random.Random], dict[str, Any]],
    rng: random.Random,
    *,
    count: int,
    apart: str = "",
    besides: Container[str] = (),
) -> list[dict[str, Any]]:
    """No two alike, and none whose key is in `besides`; fewer where there are no more."""
    found: dict[str, dict[str, Any]] = {}
    misses = 0
    while len(found) < count and misses < _PATIENCE:
        task = draw(rng)
        content = json.dumps(task, sort_keys=True)
        new = content not in found and _key(task, apart) not in besides
        misses = 0 if new else misses + 1
        if new:
            found[content] = task
    return list(found.values())


def _key(task: dict[str, Any], apart: str) -> str:
    """What belongs to one split only."""
    return str(task[apart]) if apart else json.dumps(task, sort_keys=True)


SIZES = {"train": 1000, "dev": 100, "test": 200}
_SHARES = ("train", "train", "train", "dev", "test")


def split_of(key: str, *, seed: str) -> str:
    """The split that owns whatever has this key: three fifths of all keys train, a fifth each are for dev and test."""
    return _SHARES[hashlib.sha256(f"{seed}\x1f{key}".encode()).digest()[0] % len(_SHARES)]


def draw_split(
    draw: Callable[[random.Random], dict[str, Any]],
    *,
    split: str,
    seed: str,
    apart: Callable[[dict[str, Any]], str] | None,
) -> list[dict[str, Any]]:
    """Distinct tasks of `train`, `dev` or `test`, each drawn without the others.

    apart: no value of it is in two splits; None where what `draw` gives for one split cannot be in another.
    """
    rng, misses = random.Random(f"{seed} {split}"), 0
    distinct: dict[str, dict[str, Any]] = {}
    while len(distinct) < SIZES.get(split, 0) and misses < _PATIENCE:
        task = draw(rng)
        content = json.dumps(task, sort_keys=True)
        own = apart is None or split_of(apart(task), seed=seed) == split
        misses = 0 if own and content not in distinct else misses + 1
        if own:
            distinct.setdefault(content, task)
    return list(distinct.values())
