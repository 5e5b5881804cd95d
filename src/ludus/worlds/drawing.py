"""Tasks drawn at random. Promise: the same in any process, no two alike, and none of them both in train and test."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

NUM_TRAIN = 1000
NUM_TEST = 200
_DRAWS_PER_TASK = 20


def draw_tasks(draw: Callable[[random.Random], dict[str, Any]], *, split: str, seed: str) -> list[dict[str, Any]]:
    """Distinct tasks of one split. Where `draw` cannot give enough, a sixth of what it can give is for testing."""
    rng = random.Random(seed)  # a str seed is hashed with SHA-512, so it does not depend on the process
    distinct: dict[str, dict[str, Any]] = {}
    for _ in range(_DRAWS_PER_TASK * (NUM_TRAIN + NUM_TEST)):
        task = draw(rng)
        distinct.setdefault(json.dumps(task, sort_keys=True), task)
        if len(distinct) == NUM_TRAIN + NUM_TEST:
            break
    tasks = list(distinct.values())
    num_test = max(1, len(tasks) * NUM_TEST // (NUM_TRAIN + NUM_TEST))
    return {"test": tasks[:num_test], "train": tasks[num_test:]}.get(split, [])
