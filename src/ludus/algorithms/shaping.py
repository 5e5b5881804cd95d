"""Rewards that the algorithm changes before it compares them; stored trajectories keep theirs.

    unfinished    R = unfinished_reward if a session ended without `done`    AgentRL (2510.04206)
    overlong      R + penalty: 0 up to the first number of sampled tokens, then linear to -1 at the
                  second                                                     DAPO (2503.14476)

The unfinished reward replaces all that a session earned. It is placed on the last turn, and so is
the penalty. Left out: DAPO's mask of overlong answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ludus.config import Section
from ludus.config.pieces import reward
from ludus.types import Group, Observation, Stop, Trajectory


class UnfinishedOptions(Section):
    unfinished_reward: float | None = None
    """Reward of a session that ended without `done`, in place of all it earned (AgentRL: -0.2).
    Unset: what it earned."""


class OverlongOptions(Section):
    overlong: tuple[int, int] | None = None
    """Penalty on long sessions (DAPO): 0 up to the first number of sampled tokens, then linear to
    -1 at the second. Unset: no penalty."""

    def problems(self) -> Iterator[str]:
        if self.overlong is not None and not 0 <= self.overlong[0] < self.overlong[1]:
            yield f"algorithm.overlong is {list(self.overlong)}; expected two token counts, the first below the second"


@reward("unfinished")
def unfinished(group: Group, options: UnfinishedOptions) -> Group:
    wanted = options.unfinished_reward
    if wanted is None:
        return group
    return _each(group, lambda own: own if own.stop is Stop.DONE else _with_last_reward(_without_rewards(own), wanted))


@reward("overlong")
def overlong(group: Group, options: OverlongOptions) -> Group:
    if options.overlong is None:
        return group
    start, end = options.overlong

    def shape(trajectory: Trajectory) -> Trajectory:
        num_tokens = sum(sequence.num_sampled for sequence in trajectory.sequences)
        penalty = overlong_penalty(num_tokens, start=start, end=end)
        return _with_last_reward(trajectory, _last(trajectory).reward + penalty)

    return _each(group, shape)


def overlong_penalty(num_tokens: int, *, start: int, end: int) -> float:
    """Example: start 100, end 200: 0 at 100 tokens, -0.5 at 150, -1 at 200 and beyond."""
    return -min(1.0, max(0.0, (num_tokens - start) / (end - start)))


def _each(group: Group, shape: Callable[[Trajectory], Trajectory]) -> Group:
    return replace(group, trajectories=tuple(map(shape, group.trajectories)))


def _last(trajectory: Trajectory) -> Observation:
    return trajectory.turns[-1].observation if trajectory.turns else trajectory.start


def _with_last_reward(trajectory: Trajectory, reward: float) -> Trajectory:
    observation = replace(_last(trajectory), reward=reward)
    if not trajectory.turns:
        return replace(trajectory, start=observation)
    *before, last = trajectory.turns
    return replace(trajectory, turns=(*before, replace(last, observation=observation)))


def _without_rewards(trajectory: Trajectory) -> Trajectory:
    turns = tuple(replace(turn, observation=replace(turn.observation, reward=0.0)) for turn in trajectory.turns)
    return replace(trajectory, start=replace(trajectory.start, reward=0.0), turns=turns)
