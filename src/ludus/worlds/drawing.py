"""Tasks drawn at random. Promise: the same in any process, no two alike, and none of them in two splits."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from typing import Any

NUM_TRAIN = 1000
NUM_TEST = 200
NUM_DEV = 100
_PATIENCE = 300
"""Draws in a row that bring nothing new, after which there is taken to be no more."""


def draw_tasks(
    draw: Callable[[random.Random], dict[str, Any]], *, split: str, seed: str, apart: str = "", num_dev: int = 0
) -> list[dict[str, Any]]:
    """Distinct tasks of one split. Where `draw` cannot give enough, a fifth of what it can give is for testing.

    apart: a key of the tasks; no value of it is in two splits. num_dev: tasks of a third split, dev.
    """
    rng = random.Random(seed)  # a str seed is hashed with SHA-512, so it does not depend on the process
    distinct: dict[str, dict[str, Any]] = {}
    misses = 0
    while len(distinct) < NUM_TRAIN + NUM_TEST + num_dev and misses < _PATIENCE:
        task = draw(rng)
        known = len(distinct)
        distinct.setdefault(json.dumps(task, sort_keys=True), task)
        misses = 0 if len(distinct) > known else misses + 1
    kept_together: dict[str, list[dict[str, Any]]] = {}
    for content, task in distinct.items():
        kept_together.setdefault(str(task[apart]) if apart else content, []).append(task)
    wanted = {"test": min(NUM_TEST, max(1, len(distinct) // 5)), "dev": num_dev, "train": len(distinct)}
    splits: dict[str, list[dict[str, Any]]] = {name: [] for name in wanted}
    for tasks in kept_together.values():
        splits[next(name for name in wanted if len(splits[name]) < wanted[name])] += tasks
    return splits.get(split, [])


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
