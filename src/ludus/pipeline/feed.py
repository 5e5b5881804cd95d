"""Which task next: environments by `mix`, tasks shuffled by epoch or replayed by `levels`.

Promise: a pure function of its cursor and of the results of the groups it drew: it resumes exactly.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from ludus.config import CurriculumConfig, RolloutConfig
from ludus.errors import ConfigError
from ludus.pipeline.levels import Curriculum, Levels
from ludus.pipeline.mix import Mix
from ludus.seeds import derive
from ludus.types import Batch, Group, Order, Task


class Feed:
    def __init__(
        self,
        tasks: Mapping[str, Sequence[Task]],
        *,
        weights: Mapping[str, float],
        seed: int,
        rollout: RolloutConfig | None = None,
        curriculum: CurriculumConfig | None = None,
    ) -> None:
        for environment, listed in tasks.items():
            if not listed:
                raise ConfigError(
                    f"environment {environment!r} has no tasks in its train split; nothing could be drawn from it"
                )
        config, rollout = curriculum or CurriculumConfig(), rollout or RolloutConfig()
        self._attempts, self._retries = tuple(range(rollout.group_size)), rollout.retries
        self._tasks = {name: list(listed) for name, listed in tasks.items()}
        self._seed = seed
        self._counts = dict.fromkeys(self._tasks, 0)
        self._mix = Mix({name: weights[name] for name in self._tasks}, rule=config.mix)
        make = config.factory or (Levels if config.tasks == "replay" else None)
        self._levels: dict[str, Curriculum] = {
            name: make(listed, config=config, seed=derive(seed, name))
            for name, listed in self._tasks.items()
            if make is not None
        }
        self._again: deque[Order] = deque()
        self._orders: dict[str, tuple[int, list[int]]] = {}

    def draw(self) -> Order:
        if self._again:
            return self._again.popleft()
        environment = self._mix.pick()
        count, index = self._counts[environment], sum(self._counts.values())
        self._counts[environment] += 1
        levels = self._levels.get(environment)
        task = levels.choose(count=count, index=index) if levels else self._task(environment, count)
        return self._order(index, task)

    def settle(self, order: Order, group: Group, *, replaced: bool = False) -> None:
        """A group was played. `replaced`: the filter wants another of its environment instead."""
        self._mix.settle(group, replaced=replaced)
        if levels := self._levels.get(order.task.environment):
            levels.learn(group, index=order.index)

    def train(self, groups: Sequence[Group], batch: Batch) -> None:
        """These groups went into this batch, which may have led to no optimiser step."""
        self._mix.train(groups)
        for name, levels in self._levels.items():
            levels.train([group for group in groups if group.task.environment == name], batch)

    def drop(self, order: Order) -> None:
        """The group came to nothing."""
        self._mix.drop(order.task.environment)
        if levels := self._levels.get(order.task.environment):
            levels.note(order.task, index=order.index)

    def put_back(self, order: Order) -> None:
        """The order is drawn again before anything new."""
        self._again.append(order)

    def state(self, *, again: Sequence[Order] = ()) -> dict[str, Any]:
        """The cursor; `again` are orders in progress, which a resumed run draws first."""
        return {
            "counts": dict(self._counts),
            "again": [order_to_dict(order) for order in (*again, *self._again)],
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

    def revive(self, saved: Mapping[str, Any]) -> Order:
        order = self._order(saved["index"], self._named(saved["task"]), tries=saved["tries"])
        return replace(order, max_turns=saved["max_turns"])

    def _order(self, index: int, task: Task, *, tries: int = 0) -> Order:
        seed = (derive(self._seed, index, task.id),)
        return Order(
            _group_id(index, tries), task, seed, self._attempts, retries=self._retries, index=index, tries=tries
        )

    def _named(self, task_id: str) -> Task:
        for task in chain.from_iterable(self._tasks.values()):
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


def next_try(order: Order) -> Order:
    """The order of a group that went stale, to be drawn again."""
    tries = order.tries + 1
    return replace(order, id=_group_id(order.index, tries), tries=tries, max_turns=None, born=0, others={})


def order_to_dict(order: Order) -> dict[str, Any]:
    """What `Feed.revive` makes the order from."""
    return {"index": order.index, "task": order.task.id, "tries": order.tries, "max_turns": order.max_turns}


def _group_id(index: int, tries: int) -> str:
    return f"g{index:06d}-{tries}" if tries else f"g{index:06d}"
