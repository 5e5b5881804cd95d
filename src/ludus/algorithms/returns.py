"""The worth of an action by the rewards after it: returns-to-go, and GAE given a critic's values.

Promise: a reward is credited to the action that earned it and to those before it, never to a later
one or to an observation.

    return_to_go     A_k = G_k - mean of the others' G_0,   G_k = rho_k + gamma G_{k+1}
                     rho_k: reward of turn k's observation
    GAE              delta_t = rho_t + gamma V_{t+1} - V_t
                     A_t = delta_t + gamma lambda A_{t+1}                          (1506.02438)
    bi-level GAE     GAE over the values at turn ends, then GAE over the tokens of each turn, which
                     ends in the turn's return                                     (VAGEN, RAGEN)

gamma is `discount`, lambda is `gae_lambda`. A session that was cut bootstraps with `last_value`;
for one that was done it is 0.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np

from ludus.algorithms.advantages import Discounted, mean_of_others
from ludus.config.pieces import advantage
from ludus.types import Group, Trajectory


@advantage("return_to_go")
def return_to_go_advantages(group: Group, options: Discounted) -> list[np.ndarray]:
    returns = [return_to_go(turn_rewards(t), discount=options.discount) for t in group.trajectories]
    whole = [float(own[0]) if len(own) else 0.0 for own in returns]
    return [own - mean_of_others(whole, i) for i, own in enumerate(returns)]


def turn_rewards(trajectory: Trajectory) -> np.ndarray:
    """(K,) the reward of each turn's action. No action earned that of the first observation."""
    return np.array([turn.observation.reward for turn in trajectory.turns], dtype=np.float64)


def return_to_go(rewards: np.ndarray, *, discount: float) -> np.ndarray:
    """Example: rewards [0, 1], discount 0.5 -> [0.5, 1]."""
    return gae(rewards, np.zeros(len(rewards)), discount=discount, gae_lambda=1.0)


def gae(
    rewards: np.ndarray, values: np.ndarray, *, discount: float, gae_lambda: float, last_value: float = 0.0
) -> np.ndarray:
    """Advantages of a chain of steps: turns, or the sampled tokens of a trajectory."""
    advantages, after = np.zeros(len(rewards)), 0.0
    following = np.append(values[1:], last_value)
    for step in reversed(range(len(rewards))):
        delta = rewards[step] + discount * following[step] - values[step]
        advantages[step] = after = delta + discount * gae_lambda * after
    return advantages


def token_rewards(rewards: Seq[float], *, sampled: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """(T,) each turn's reward on its last sampled token; without one, on the turn before it."""
    placed, carried = np.zeros(len(sampled)), 0.0
    for turn in reversed(range(len(rewards))):
        own = np.flatnonzero(sampled & (turns == turn))
        carried += rewards[turn]
        if len(own):
            placed[own[-1]], carried = carried, 0.0
    return placed


def bilevel_gae(
    rewards: np.ndarray,
    values: np.ndarray,
    *,
    sampled: np.ndarray,
    turns: np.ndarray,
    discount: float,
    gae_lambda: float,
    token_discount: float = 1.0,
    token_lambda: float = 1.0,
    last_value: float = 0.0,
) -> np.ndarray:
    """(T,) from (K,) rewards per turn and (T,) values. Turn ends follow from `turns`."""
    own = [np.flatnonzero(sampled & (turns == turn)) for turn in range(len(rewards))]
    assert all(map(len, own)), "every turn has sampled tokens"
    ends = np.array([positions[-1] for positions in own], dtype=np.int64)
    of_turn = gae(rewards, values[ends], discount=discount, gae_lambda=gae_lambda, last_value=last_value)
    advantages = np.zeros(len(sampled))
    for turn, positions in enumerate(own):
        inside = np.zeros(len(positions))
        inside[-1] = of_turn[turn] + values[ends[turn]]  # its tokens end in its return
        advantages[positions] = gae(inside, values[positions], discount=token_discount, gae_lambda=token_lambda)
    return advantages
