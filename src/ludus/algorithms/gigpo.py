"""GiGPO (2505.10978): compares the turns of one group that met the same state.

    A_t = A_whole + state_weight A_state
    A_whole      group-relative over the trajectories' rewards, one score per trajectory
    A_state      group-relative over the discounted returns-to-go of the turns with the same
                 (group, state); 0 where a state occurs once

A state is the hash of the messages of the observation before the turn. If an environment writes a
turn counter into its text, every state is unique and only A_whole is left: `groups/shared_states`
is then 0. Left out: similarity between states that are not equal. Known bias: if one trajectory
meets a state twice, both turns are compared.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Hashable
from collections.abc import Sequence as Seq

import numpy as np
from pydantic import Field

from ludus.algorithms.advantages import GroupOptions, Normalise, group_advantages, rewards_of
from ludus.algorithms.returns import return_to_go, turn_rewards
from ludus.config.pieces import advantage
from ludus.types import Group, Observation, Trajectory


class GigpoOptions(GroupOptions):
    discount: float = Field(default=1.0, gt=0, le=1)
    """Discount gamma per turn."""
    state_weight: float = Field(default=1.0, gt=0)
    """Weight of the comparison between turns with equal states."""


def shared_states(groups: Seq[Group]) -> dict[str, float]:
    shares = [shared_share([states(trajectory) for trajectory in group.trajectories]) for group in groups]
    return {"groups/shared_states": float(np.mean(shares))}


@advantage("gigpo", compares=True, metrics=shared_states)
def gigpo(group: Group, options: GigpoOptions) -> list[np.ndarray]:
    whole = group_advantages(rewards_of(group), normalise=options.normalise)
    returns = [return_to_go(turn_rewards(t), discount=options.discount) for t in group.trajectories]
    met = [states(trajectory) for trajectory in group.trajectories]
    of_state = state_advantages(returns, met, normalise=options.normalise)
    return [own + np.float32(options.state_weight) * state for own, state in zip(whole, of_state, strict=True)]


def states(trajectory: Trajectory) -> list[str]:
    """(K,) the state that each turn's action met."""
    seen = (trajectory.start, *(turn.observation for turn in trajectory.turns))
    return [_digest(observation) for observation in seen[: len(trajectory.turns)]]


def state_advantages(returns: Seq[np.ndarray], met: Seq[Seq[Hashable]], *, normalise: Normalise) -> list[np.ndarray]:
    """For the trajectories of one group: `returns[i][k]` of turn k, in the state `met[i][k]`."""
    places: defaultdict[Hashable, list[tuple[int, int]]] = defaultdict(list)
    for i, own in enumerate(met):
        for k, state in enumerate(own):
            places[state].append((i, k))
    advantages = [np.zeros(len(own), dtype=np.float32) for own in returns]
    for shared in places.values():
        values = group_advantages([float(returns[i][k]) for i, k in shared], normalise=normalise)
        for (i, k), value in zip(shared, values, strict=True):
            advantages[i][k] = value
    return advantages


def shared_share(met: Seq[Seq[Hashable]]) -> float:
    """The share of a group's turns whose state another of its turns met too."""
    flat = [state for own in met for state in own]
    return sum(flat.count(state) > 1 for state in flat) / len(flat) if flat else 0.0


def _digest(observation: Observation) -> str:
    parts = [part for message in observation.messages for part in (message.role, message.name, message.content)]
    return hashlib.blake2b("\x1f".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
