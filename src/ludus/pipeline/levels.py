"""Which task of an environment next: prioritised level replay (2010.03934).

Promise: every task is revisited; a choice is a pure function of seed, draws and scores.

    P(task) = (1 - c) rank(score)^(-1 / temperature) / sum  +  c (draws since last played) / sum
              c = staleness_share
    score     learnability          p (1 - p), p the group's success rate (2408.15099)
              advantage             mean |R - mean_G|
              positive_value_loss   mean max(A, 0), A the critic's raw advantages (2110.02439)

The first two are known when a group was played, the last when it is trained: until then a task
keeps its score, or 0. With chance `fresh`, and while no task is scored, a task that was never drawn
comes first, in shuffled order. The paper's temperature of 0.1 puts 99.9 % on the best task; our
default is 1. Left out: robust PLR's gradient-free first visit."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

from ludus.config import CurriculumConfig
from ludus.seeds import derive
from ludus.types import Batch, Group, Task


@dataclass(frozen=True, slots=True)
class Level:
    score: float
    played: int
    """Index of the draw that last played it."""


def score_of(group: Group, *, kind: Literal["learnability", "advantage"]) -> float:
    size = len(group.trajectories)
    if kind == "learnability":
        share = sum(trajectory.success for trajectory in group.trajectories) / size
        return share * (1 - share)
    rewards = [trajectory.reward for trajectory in group.trajectories]
    mean = math.fsum(rewards) / size
    return math.fsum(abs(reward - mean) for reward in rewards) / size


def positive_value_losses(groups: Iterable[Group], batch: Batch) -> dict[str, float]:
    """By id of the groups in the batch: mean max(return - value, 0) over tokens with a value."""
    owners = {id(s.ids): group.id for group in groups for t in group.trajectories for s in t.sequences}
    surprises: dict[str, list[np.ndarray]] = {}
    for sequence in batch.sequences:
        if sequence.critic is not None and id(sequence.ids) in owners:  # ids are never replaced
            asked = sequence.critic.weights > 0
            better = np.maximum(sequence.critic.returns - sequence.critic.values, 0.0)[asked]
            surprises.setdefault(owners[id(sequence.ids)], []).append(better)
    joined = {name: np.concatenate(parts) for name, parts in surprises.items()}
    return {name: float(values.mean()) for name, values in joined.items() if len(values)}


def replay_chances(
    levels: Mapping[str, Level], *, now: int, temperature: float, staleness_share: float
) -> dict[str, float]:
    """By task id; they sum to 1. Equal scores rank by name, so that every process agrees."""
    ranked = sorted(levels, key=lambda name: (-levels[name].score, name))
    by_rank = {name: (place + 1) ** (-1 / temperature) for place, name in enumerate(ranked)}
    by_age = {name: max(0, now - level.played) for name, level in levels.items()}
    ranks, ages = sum(by_rank.values()), sum(by_age.values())
    share = staleness_share if ages else 0.0
    return {
        name: (1 - share) * by_rank[name] / ranks + (share * by_age[name] / ages if ages else 0.0) for name in ranked
    }


class Curriculum(Protocol):
    """Chooses the tasks of one environment. Made as Curriculum(tasks, config=..., seed=...).
    Choices depend on the seed and on these calls alone, so that a resumed run makes the same."""

    def choose(self, *, count: int, index: int) -> Task:
        """`count`: draws of this environment so far; `index`: draws of all."""
        ...

    def note(self, task: Task, *, index: int) -> None:
        """The task was played without a result."""
        ...

    def learn(self, group: Group, *, index: int) -> None:
        """A group was played."""
        ...

    def train(self, groups: Sequence[Group], batch: Batch) -> None:
        """Groups were trained."""
        ...

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold, as JSON."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class Levels:
    """The tasks of one environment with their scores."""

    def __init__(self, tasks: Sequence[Task], *, config: CurriculumConfig, seed: int) -> None:
        self._tasks = {task.id: task for task in tasks}
        self._config, self._seed = config, seed
        self._order = sorted(self._tasks)
        random.Random(derive(seed, "fresh")).shuffle(self._order)
        self._num_fresh = 0
        self._levels: dict[str, Level] = {}

    def choose(self, *, count: int, index: int) -> Task:
        rng = random.Random(derive(self._seed, "level", count))
        left = self._num_fresh < len(self._order)
        if left and (not self._levels or rng.random() < self._config.fresh):
            self._num_fresh += 1
            return self._tasks[self._order[self._num_fresh - 1]]
        if not self._levels:  # all drawn, none finished yet
            return self._tasks[rng.choice(self._order)]
        temperature, share = self._config.rank_temperature, self._config.staleness_share
        chances = replay_chances(self._levels, now=index, temperature=temperature, staleness_share=share)
        return self._tasks[rng.choices(list(chances), weights=list(chances.values()))[0]]

    def note(self, task: Task, *, index: int) -> None:
        """The task was played, whatever the outcome: its age counts from here."""
        known = self._levels.get(task.id, Level(0.0, index))
        self._levels[task.id] = replace(known, played=index)

    def learn(self, group: Group, *, index: int) -> None:
        """Scores a group that was played."""
        self.note(group.task, index=index)
        if group.trajectories and self._config.score != "positive_value_loss":
            self._judge(group.task, score_of(group, kind=self._config.score))

    def train(self, groups: Sequence[Group], batch: Batch) -> None:
        """Scores groups that were trained, where the score needs the critic's values."""
        losses = positive_value_losses(groups, batch) if self._config.score == "positive_value_loss" else {}
        for group in groups:
            if group.task.id in self._levels and group.id in losses:
                self._judge(group.task, losses[group.id])

    def _judge(self, task: Task, score: float) -> None:
        self._levels[task.id] = replace(self._levels[task.id], score=score)

    def state(self) -> dict[str, Any]:
        scores = {name: [level.score, level.played] for name, level in sorted(self._levels.items())}
        return {"num_fresh": self._num_fresh, "levels": scores}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._num_fresh = state["num_fresh"]
        self._levels = {name: Level(*values) for name, values in state["levels"].items() if name in self._tasks}
