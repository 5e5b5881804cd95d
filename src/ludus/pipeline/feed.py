"""Which task next: environments mixed by weight, tasks shuffled by epoch. Promise: a pure function of its cursor, so it resumes exactly."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ludus.errors import ConfigError
from ludus.seeds import derive
from ludus.types import Task


@dataclass(frozen=True, slots=True)
class Draw:
    """One group to play. `index` orders draws; `seed` decides the noise of its attempts; `tries` counts how often it went stale."""

    index: int
    task: Task
    seed: int
    tries: int = 0

    @property
    def group_id(self) -> str:
        return f"g{self.index:06d}" if self.tries == 0 else f"g{self.index:06d}-{self.tries}"


class Feed:
    """Draws environments so that their shares never drift from the weights by more than one draw."""

    def __init__(self, tasks: Mapping[str, Sequence[Task]], *, weights: Mapping[str, float], seed: int) -> None:
        for environment, listed in tasks.items():
            if not listed:
                raise ConfigError(
                    f"environment {environment!r} has no tasks in its train split; nothing could be drawn from it"
                )
        self._tasks = {name: list(listed) for name, listed in tasks.items()}
        self._weights = dict(weights)
        self._seed = seed
        self._counts = dict.fromkeys(self._tasks, 0)
        self._again: deque[Draw] = deque()
        self._orders: dict[str, tuple[int, list[int]]] = {}

    def draw(self) -> Draw:
        if self._again:
            return self._again.popleft()
        environment = min(self._counts, key=lambda name: ((self._counts[name] + 0.5) / self._weights[name], name))
        count, index = self._counts[environment], sum(self._counts.values())
        self._counts[environment] += 1
        task = self._task(environment, count)
        return Draw(index=index, task=task, seed=derive(self._seed, index, task.id))

    def put_back(self, draw: Draw) -> None:
        """Drawn again before anything new: an interrupted group, or one that went stale (as another try)."""
        self._again.append(draw)

    def state(self, *, again: Sequence[Draw] = ()) -> dict[str, Any]:
        """The cursor; `again` are draws in progress, which a resumed run draws first."""
        return {"counts": dict(self._counts), "again": [draw_to_dict(draw) for draw in (*again, *self._again)]}

    def restore(self, state: Mapping[str, Any]) -> None:
        counts = dict(state["counts"])
        if set(counts) != set(self._tasks):
            raise ConfigError(
                f"the checkpoint was made with environments {sorted(counts)}, this run has {sorted(self._tasks)}; "
                "resume with the same environments or start a new run"
            )
        self._counts = counts
        self._again = deque(self.revive(saved) for saved in state["again"])

    def revive(self, saved: Mapping[str, Any]) -> Draw:
        task = self.task(saved["task"])
        return Draw(index=saved["index"], task=task, seed=saved["seed"], tries=saved["tries"])

    def task(self, task_id: str) -> Task:
        for listed in self._tasks.values():
            for task in listed:
                if task.id == task_id:
                    return task
        raise ConfigError(
            f"the checkpoint names task {task_id!r}, which no environment of this run has; were its options changed?"
        )

    def _task(self, environment: str, count: int) -> Task:
        tasks = self._tasks[environment]
        epoch, place = divmod(count, len(tasks))
        cached = self._orders.get(environment)
        if cached is None or cached[0] != epoch:
            order = list(range(len(tasks)))
            random.Random(derive(self._seed, environment, epoch)).shuffle(order)
            cached = self._orders[environment] = (epoch, order)
        return tasks[cached[1][place]]


def draw_to_dict(draw: Draw) -> dict[str, Any]:
    return {"index": draw.index, "task": draw.task.id, "seed": draw.seed, "tries": draw.tries}
