"""Rewards that the algorithm changes before it compares them. Promise: what is recorded stays what the environment said.

    unfinished    R = unfinished_reward where a session ended without `done`                         AgentRL (2510.04206), -0.2 there
    overlong      R + penalty: 0 up to `start` sampled tokens, then linear to -1 at `end`            DAPO's soft punishment (2503.14476)

The unfinished reward takes the place of all a session earned. It sits on the last turn, and so does the penalty.
Left out: DAPO's mask of overlong answers.
"""

from __future__ import annotations

from dataclasses import replace

from ludus.config import AlgorithmConfig
from ludus.types import Group, Observation, Stop, Trajectory


def shaped(group: Group, *, config: AlgorithmConfig) -> Group:
    """The very same group where nothing is configured."""
    if config.unfinished_reward is None and config.overlong is None:
        return group
    return replace(group, trajectories=tuple(_shaped(trajectory, config) for trajectory in group.trajectories))


def overlong_penalty(num_tokens: int, *, start: int, end: int) -> float:
    """Example: start 100, end 200: 0 at 100 tokens, -0.5 at 150, -1 at 200 and beyond."""
    return -min(1.0, max(0.0, (num_tokens - start) / (end - start)))


def _shaped(trajectory: Trajectory, config: AlgorithmConfig) -> Trajectory:
    if config.unfinished_reward is not None and trajectory.stop is not Stop.DONE:
        trajectory = _with_last_reward(_without_rewards(trajectory), config.unfinished_reward)
    if config.overlong is not None:
        start, end = config.overlong
        said = sum(sequence.num_sampled for sequence in trajectory.sequences)
        penalty = overlong_penalty(said, start=start, end=end)
        trajectory = _with_last_reward(trajectory, _last(trajectory).reward + penalty)
    return trajectory


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
