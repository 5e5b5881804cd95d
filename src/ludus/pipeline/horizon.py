"""The limit of turns per session, as training goes on. Promise: a pure function of the run's state.

    by steps     turns[min(step // every, last)]
                 ScalingInter (2509.08755): short sessions first, longer ones phase by phase
    by success   the next limit once `success` of the last `window` trajectories succeeded

The limit is decided when a task is drawn and travels with the order, so that a group that is played
again after a resume keeps it. Reaching it is stop max_turns, distinct from done. Evaluation plays
with the environment's own limit. Left out: bootstrapping a cut session's reward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ludus.config import HorizonConfig
from ludus.types import Group


@dataclass(frozen=True, slots=True)
class Phase:
    """One environment's place in its list of limits, and the outcomes there, oldest first."""

    index: int = 0
    successes: tuple[bool, ...] = ()


def scheduled(turns: Sequence[int], *, every: int, step: int) -> int:
    """The limit after `step` optimiser steps: [5, 8, 10] every 100 gives 8 from 100 to 199."""
    return turns[min(step // every, len(turns) - 1)]


def advance(phase: Phase, successes: Iterable[bool], *, config: HorizonConfig) -> Phase:
    """At most one limit further per trajectory; each limit starts with an empty window."""
    for success in successes:
        window = (*phase.successes, success)[-config.window :]
        ready = len(window) == config.window and sum(window) >= (config.success or 1.0) * config.window
        last = phase.index == len(config.turns) - 1
        phase = Phase(phase.index + 1) if ready and not last else replace(phase, successes=window)
    return phase


class Horizons:
    def __init__(self, configs: Mapping[str, HorizonConfig]) -> None:
        self._configs = dict(configs)
        self._phases = {name: Phase() for name, config in configs.items() if not config.every}

    def limit(self, environment: str, *, step: int) -> int | None:
        """None: this environment's limit does not change."""
        config = self._configs.get(environment)
        if config is None:
            return None
        if config.every:
            return scheduled(config.turns, every=config.every, step=step)
        return config.turns[self._phases[environment].index]

    def learn(self, groups: Iterable[Group]) -> None:
        """Counts trained groups; trajectories under an earlier limit do not count."""
        for group in groups:
            name = group.task.environment
            if name in self._phases:
                limit = self.limit(name, step=0)
                under = [t.success for t in group.trajectories if t.max_turns == limit]
                self._phases[name] = advance(self._phases[name], under, config=self._configs[name])

    def state(self) -> dict[str, Any]:
        return {name: {"index": p.index, "successes": list(p.successes)} for name, p in self._phases.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Environments whose horizon is new in this run start with the first limit."""
        for name in self._phases.keys() & state.keys():
            self._phases[name] = Phase(state[name]["index"], tuple(state[name]["successes"]))
