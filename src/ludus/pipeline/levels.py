"""Which task of an environment next, by what its last group showed: prioritised level replay (2010.03934).

Promise: everything is revisited, and a choice is a pure function of the seed, the draws so far and the scores.

    P(task) = (1 - c) rank(score)^(-1 / temperature) / sum  +  c (draws since last played) / sum         c = staleness_share
    score   learnability  p (1 - p), p the group's success rate (2408.15099): 0 for what is always or never solved
            advantage     mean |R - mean_G|

With chance `fresh`, and while nothing is scored, a task that was never drawn comes first, in shuffled order. The paper's temperature of
0.1 puts 99.9 % on the best task; 1 is our default. Left out: positive value loss (needs a critic), robust PLR's gradient-free first visit.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ludus.config import CurriculumConfig
from ludus.seeds import derive
from ludus.types import Group, Task

Score = Literal["learnability", "advantage"]


@dataclass(frozen=True, slots=True)
class Level:
    score: float
    played: int
    """Index of the draw that last played it."""


def score_of(group: Group, *, kind: Score) -> float:
    size = len(group.trajectories)
    if kind == "learnability":
        share = sum(trajectory.success for trajectory in group.trajectories) / size
        return share * (1 - share)
    rewards = [trajectory.reward for trajectory in group.trajectories]
    mean = math.fsum(rewards) / size
    return math.fsum(abs(reward - mean) for reward in rewards) / size


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


class Levels:
    """The tasks of one environment and what is known about them."""

    def __init__(self, tasks: Sequence[Task], *, config: CurriculumConfig, seed: int) -> None:
        self._tasks = {task.id: task for task in tasks}
        self._config, self._seed = config, seed
        self._order = sorted(self._tasks)
        random.Random(derive(seed, "fresh")).shuffle(self._order)
        self._num_fresh = 0
        self._levels: dict[str, Level] = {}

    def choose(self, *, count: int, index: int) -> Task:
        """`count`: draws of this environment so far; `index`: draws of all."""
        rng = random.Random(derive(self._seed, "level", count))
        left = self._num_fresh < len(self._order)
        if left and (not self._levels or rng.random() < self._config.fresh):
            self._num_fresh += 1
            return self._tasks[self._order[self._num_fresh - 1]]
        if not self._levels:  # all drawn, none finished yet
            return self._tasks[rng.choice(self._order)]
        chances = replay_chances(
            self._levels,
            now=index,
            temperature=self._config.rank_temperature,
            staleness_share=self._config.staleness_share,
        )
        return self._tasks[rng.choices(list(chances), weights=list(chances.values()))[0]]

    def learn(self, group: Group, *, index: int) -> None:
        if group.trajectories:
            self._levels[group.task.id] = Level(score_of(group, kind=self._config.score), index)

    def state(self) -> dict[str, Any]:
        scores = {name: [level.score, level.played] for name, level in sorted(self._levels.items())}
        return {"num_fresh": self._num_fresh, "levels": scores}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._num_fresh = state["num_fresh"]
        self._levels = {name: Level(*values) for name, values in state["levels"].items() if name in self._tasks}
