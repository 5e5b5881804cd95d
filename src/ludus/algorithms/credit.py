"""What a critic's values make of a trajectory: advantages per sampled token, and what the critic itself should have said.

Promise: the recursion runs over sampled tokens, or over turns that sampled any; observations neither discount nor carry anything.

    gae           token GAE over all sampled tokens of a trajectory, across its turns     PPO (1707.06347), multi-turn as in Agent-R1
    turn_gae      one value before each turn's first token, GAE over turns, spread        Agent-R1's turn-level MDP (2511.14460)
    bilevel_gae   GAE over turns, and inside each turn over its tokens without discount   VAGEN, an option of RAGEN (2504.20073)

Returns are advantage + value. A session that was cut by a limit bootstraps, where asked, with the value before its last token: that
after it is not computed. One that was done, or that ended for invalid actions, never does.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import numpy as np

from ludus.algorithms.returns import bilevel_gae, gae, token_rewards, turn_rewards
from ludus.config import AlgorithmConfig
from ludus.types import Sequence, Stop, Trajectory, ValueTargets, frozen_array

CUT = (Stop.MAX_TURNS, Stop.MAX_TOKENS, Stop.MAX_TURN_TOKENS)


@dataclass(frozen=True, slots=True, eq=False)
class Credit:
    """Of the M sampled tokens of a trajectory, in order."""

    values: np.ndarray
    advantages: np.ndarray
    returns: np.ndarray
    counted: np.ndarray  # bool: where the critic is asked


def credit(trajectory: Trajectory, values: np.ndarray, *, config: AlgorithmConfig) -> Credit:
    turns = np.concatenate([*(s.turns[s.sampled] for s in trajectory.sequences), np.zeros(0, np.int32)])
    assert len(turns) == len(values), "one value for each sampled token"
    everywhere = np.ones(len(values), np.bool_)
    if not len(values):
        return Credit(values, values, values, everywhere)
    knobs = {"discount": config.discount, "gae_lambda": config.gae_lambda}
    knobs["last_value"] = float(values[-1]) if config.bootstrap and trajectory.stop in CUT else 0.0
    rewards = token_rewards(turn_rewards(trajectory).tolist(), sampled=everywhere, turns=turns)
    if config.advantage == "gae":
        advantages, counted = gae(rewards, values, **knobs), everywhere
    else:
        _, firsts, ordinals = np.unique(turns, return_index=True, return_inverse=True)
        by_turn = np.bincount(ordinals, weights=rewards)
        if config.advantage == "turn_gae":
            advantages = gae(by_turn, values[firsts], **knobs)[ordinals]
            counted = np.isin(np.arange(len(values)), firsts)
        else:
            advantages = bilevel_gae(by_turn, values, sampled=everywhere, turns=ordinals, **knobs)
            counted = everywhere
    return Credit(values, advantages, advantages + values, counted)


def with_targets(sequences: Seq[Sequence], credits: Seq[Credit]) -> tuple[Sequence, ...]:
    """`sequences` are those of the credits' trajectories in which something was sampled, in order. Every token asked weighs the same."""
    total = max(1, sum(int(credit.counted.sum()) for credit in credits))
    values, returns, weights = (
        np.concatenate([*parts, np.zeros(0)])
        for parts in (
            [credit.values for credit in credits],
            [credit.returns for credit in credits],
            [credit.counted / total for credit in credits],
        )
    )
    given, begin = [], 0
    for sequence in sequences:
        own = slice(begin, begin := begin + sequence.num_sampled)
        targets = ValueTargets(*(_placed(flat[own], sequence) for flat in (values, returns, weights)))
        given.append(replace(sequence, critic=targets))
    return tuple(given)


def _placed(sampled: np.ndarray, sequence: Sequence) -> np.ndarray:
    whole = np.zeros(len(sequence), np.float32)
    whole[sequence.sampled] = sampled
    return frozen_array(whole, np.float32)
