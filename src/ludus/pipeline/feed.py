"""Which task next: environments by their `mix`, tasks shuffled by epoch or replayed by their `levels`.

Promise: a pure function of its cursor and of what it was told about the groups it drew, so it resumes exactly.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ludus.config import CurriculumConfig
from ludus.errors import ConfigError
from ludus.pipeline.levels import Levels
from ludus.pipeline.mix import Mix
from ludus.seeds import derive
from ludus.types import Batch, Group, Task


@dataclass(frozen=True, slots=True)
class Draw:
    """One group to play. `index` orders draws; `seed` decides the noise of its attempts; `tries` counts how often it went stale."""

    index: int
    task: Task
    seed: int
    tries: int = 0
    max_turns: int | None = None
    """The horizon's limit when it was drawn; None: the environment's own."""

    @property
    def group_id(self) -> str:
        return f"g{self.index:06d}" if self.tries == 0 else f"g{self.index:06d}-{self.tries}"


class Feed:
    def __init__(
        self,
        tasks: Mapping[str, Sequence[Task]],
        *,
        weights: Mapping[str, float],
        seed: int,
        curriculum: CurriculumConfig | None = None,
    ) -> None:
        for environment, listed in tasks.items():
            if not listed:
                raise ConfigError(
                    f"environment {environment!r} has no tasks in its train split; nothing could be drawn from it"
                )
        config = curriculum or CurriculumConfig()
        self._tasks = {name: list(listed) for name, listed in tasks.items()}
        self._seed = seed
        self._counts = dict.fromkeys(self._tasks, 0)
        self._mix = Mix({name: weights[name] for name in self._tasks}, rule=config.mix)
        self._levels = {
            name: Levels(listed, config=config, seed=derive(seed, name))
            for name, listed in self._tasks.items()
            if config.tasks == "replay"
        }
        self._again: deque[Draw] = deque()
        self._orders: dict[str, tuple[int, list[int]]] = {}

    def draw(self) -> Draw:
        if self._again:
            return self._again.popleft()
        environment = self._mix.pick()
        count, index = self._counts[environment], sum(self._counts.values())
        self._counts[environment] += 1
        levels = self._levels.get(environment)
        task = levels.choose(count=count, index=index) if levels else self._task(environment, count)
        return Draw(index=index, task=task, seed=derive(self._seed, index, task.id))

    def settle(self, draw: Draw, group: Group, *, replaced: bool = False) -> None:
        """A drawn group was played to its end. `replaced`: the filter wants another of its environment in its place."""
        self._mix.settle(group, replaced=replaced)
        if levels := self._levels.get(draw.task.environment):
            levels.learn(group, index=draw.index)

    def train(self, groups: Sequence[Group], batch: Batch) -> None:
        """These groups went into an optimiser step with this batch, or into a batch that came to none."""
        self._mix.train(groups)
        for name, levels in self._levels.items():
            levels.train([group for group in groups if group.task.environment == name], batch)

    def drop(self, draw: Draw) -> None:
        """The group came to nothing."""
        self._mix.drop(draw.task.environment)
        if levels := self._levels.get(draw.task.environment):
            levels.note(draw.task, index=draw.index)

    def put_back(self, draw: Draw) -> None:
        """Drawn again before anything new: an interrupted group, or one that went stale (as another try)."""
        self._again.append(draw)

    def state(self, *, again: Sequence[Draw] = ()) -> dict[str, Any]:
        """The cursor; `again` are draws in progress, which a resumed run draws first."""
        return {
            "counts": dict(self._counts),
            "again": [draw_to_dict(draw) for draw in (*again, *self._again)],
            "mix": self._mix.state(),
            "levels": {name: levels.state() for name, levels in self._levels.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        counts = dict(state["counts"])
        if set(counts) != set(self._tasks):
            raise ConfigError(
                f"the checkpoint was made with environments {sorted(counts)}, this run has {sorted(self._tasks)}; "
                "resume with the same environments or start a new run"
            )
        self._counts = counts
        self._mix.restore(state["mix"])
        for name in self._levels.keys() & state["levels"].keys():
            self._levels[name].restore(state["levels"][name])
        self._again = deque(self.revive(saved) for saved in state["again"])

    def revive(self, saved: Mapping[str, Any]) -> Draw:
        task = self.task(saved["task"])
        return Draw(saved["index"], task, seed=saved["seed"], tries=saved["tries"], max_turns=saved["max_turns"])

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
    return {
        "index": draw.index,
        "task": draw.task.id,
        "seed": draw.seed,
        "tries": draw.tries,
        "max_turns": draw.max_turns,
    }
