"""Which environment next. Promise: shares follow the rule to within one draw; picks are pure.

    weights    groups drawn, by the run file's weights
    tokens     sampled tokens of trained groups, by the weights: long answers are drawn less often
    success    weight x (p (1 - p) + FLOOR), p the recent success rate: solved or hopeless
               environments are drawn less often

A group that the filter replaces does not count, so that its environment is drawn once more:
dropping alone would change the mix. After MAX_REPLACED in a row it does count, or one environment
without gradient would hold up all others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from ludus.types import Group

Rule = Literal["weights", "tokens", "success"]
FLOOR = 0.05
MEMORY = 0.1
"""Weight of the latest group in the recent success rate; before the first, it is one half."""
MAX_REPLACED = 25
COUNTS = ("drawn", "done", "tokens", "passed", "replaced", "success")
"""What is kept of each environment."""


class Mix:
    def __init__(self, weights: Mapping[str, float], *, rule: Rule) -> None:
        self._weights, self._rule = dict(weights), rule
        self._drawn, self._done, self._tokens, self._passed = (dict.fromkeys(weights, 0.0) for _ in range(4))
        self._replaced = dict.fromkeys(weights, 0)
        self._success = dict.fromkeys(weights, 0.5)

    def pick(self) -> str:
        """Draws the environment that is furthest behind its share."""
        name = min(self._weights, key=lambda name: (self._due(name), name))
        self._drawn[name] += 1
        self._passed[name] += 1 / self._weight(name)
        return name

    def settle(self, group: Group, *, replaced: bool) -> None:
        """The group was played to its end. `replaced`: the filter wants another in its place."""
        name = group.task.environment
        self._replaced[name] = self._replaced[name] + 1 if replaced else 0
        if replaced and self._replaced[name] <= MAX_REPLACED:
            self._drawn[name] -= 1
            self._passed[name] -= 1 / self._weight(name)
        elif replaced:
            self.drop(name)
        if group.trajectories:
            share = sum(trajectory.success for trajectory in group.trajectories) / len(group.trajectories)
            self._success[name] += MEMORY * (share - self._success[name])

    def train(self, groups: Iterable[Group]) -> None:
        for group in groups:
            self._done[group.task.environment] += 1
            self._tokens[group.task.environment] += sum(trajectory.num_sampled for trajectory in group.trajectories)

    def drop(self, environment: str) -> None:
        """A draw without a result counts too, so that a broken environment does not take over."""
        self._done[environment] += 1

    def state(self) -> dict[str, Any]:
        return {name: dict(getattr(self, f"_{name}")) for name in COUNTS}

    def restore(self, state: Mapping[str, Any]) -> None:
        for name, values in state.items():
            setattr(self, f"_{name}", dict(values))

    def _due(self, name: str) -> float:
        if self._rule == "weights":
            return (self._drawn[name] + 0.5) / self._weights[name]
        if self._rule == "success":
            return self._passed[name] + 0.5 / self._weight(name)
        underway = self._drawn[name] - self._done[name]
        return (self._tokens[name] + (underway + 0.5) * self._mean_tokens(name)) / self._weights[name]

    def _mean_tokens(self, name: str) -> float:
        """Tokens per group; of all environments while this one has none."""
        if self._tokens[name]:
            return self._tokens[name] / self._done[name]
        return (sum(self._tokens.values()) or 1.0) / (sum(self._done.values()) or 1.0)

    def _weight(self, name: str) -> float:
        p = self._success[name]
        return self._weights[name] * (p * (1 - p) + FLOOR)
