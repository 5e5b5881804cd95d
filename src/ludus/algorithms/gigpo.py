"""GiGPO (2505.10978): turns of one group that met the same state are compared with each other.

    A_t = A_whole + state_weight A_state
    A_whole      group-relative over the trajectories' rewards, one score per trajectory
    A_state      group-relative over the discounted returns-to-go of the turns with the same (group, state); 0 where a state occurs once

A state is what the model saw last: the messages of the observation before the turn, hashed. An environment that writes a turn counter
into its text makes every state unique, and GiGPO becomes the trajectory's advantage alone; `groups/shared_states` shows it.
Left out: similarity between states that are not equal. Known bias: turns of one trajectory that met a state twice are both compared.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Hashable
from collections.abc import Sequence as Seq
from typing import Literal

import numpy as np

from ludus.algorithms.advantages import group_advantages
from ludus.types import Observation, Trajectory


def states(trajectory: Trajectory) -> list[str]:
    """(K,) the state that each turn's action met."""
    seen = (trajectory.start, *(turn.observation for turn in trajectory.turns))
    return [_digest(observation) for observation in seen[: len(trajectory.turns)]]


def state_advantages(
    returns: Seq[np.ndarray], met: Seq[Seq[Hashable]], *, normalise: Literal["std", "none"]
) -> list[np.ndarray]:
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
