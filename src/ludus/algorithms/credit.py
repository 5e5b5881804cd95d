"""Advantages from a critic's values, and the returns that the critic learns from.

    gae           GAE over all sampled tokens of a trajectory, across turns    PPO (1707.06347)
    turn_gae      GAE over turns, V read before a turn's first token           Agent-R1 (2511.14460)
    bilevel_gae   GAE over turns, then over each turn's tokens, undiscounted   RAGEN (2504.20073)
    archer        min Q(s, a) - min V(s), for every token of the turn          ArCHer (2402.19446)

The critic itself (`trainer/critics/archer.py`) computes the last one. Asking that critic also
trains it: the turns are added to its replay buffer first. For the others, returns are
advantage + value. Promise: the recursion runs over sampled tokens, or over turns that sampled any;
observations neither discount nor carry anything. With `bootstrap`, a session that a limit cut
continues with the value before its last token, because the value after it is not computed. One that
was done, or that ended for invalid actions, never does.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from pydantic import Field

from ludus.algorithms.advantages import Discounted
from ludus.algorithms.returns import bilevel_gae, gae, token_rewards, turn_rewards
from ludus.config import Section
from ludus.config.pieces import advantage
from ludus.types import Group, Sequence, Stop, Trajectory, ValueTargets, frozen_array

CUT = (Stop.MAX_TURNS, Stop.MAX_TOKENS, Stop.MAX_TURN_TOKENS)


class CreditOptions(Section):
    advantage: str = "gae"
    normalise: Literal["none", "batch"] = "batch"
    """batch: whiten over the batch's sampled tokens (turn_gae: over its turns). none: off."""
    discount: float = Field(default=1.0, gt=0, le=1)
    """Discount gamma: per sampled token with gae, per turn with turn_gae and bilevel_gae."""
    gae_lambda: float = Field(default=1.0, ge=0, le=1)
    """GAE lambda. 1 uses full returns, 0 the critic's one-step estimate."""
    bootstrap: bool = False
    """Continue a session that a limit cut with the critic's last value, as if it had not ended."""


@dataclass(frozen=True, slots=True, eq=False)
class Credit:
    """Over the M sampled tokens of a trajectory, in order."""

    values: np.ndarray
    advantages: np.ndarray
    returns: np.ndarray
    counted: np.ndarray  # bool: the tokens before which the critic is asked


@advantage("bilevel_gae", critics=("head", "model"))
@advantage("turn_gae", critics=("head", "model"))
@advantage("gae", critics=("head", "model"))
def credits_of(group: Group, options: CreditOptions, values: Seq[np.ndarray]) -> list[Credit]:
    return [_credit(*each, options) for each in zip(group.trajectories, values, strict=True)]


@advantage("archer", per="token", critics=("archer",), trains_critic=True)
def archer(group: Group, options: Discounted, values: Seq[np.ndarray]) -> Seq[np.ndarray]:
    return values


def _credit(trajectory: Trajectory, values: np.ndarray, options: CreditOptions) -> Credit:
    turns = sampled_turns(trajectory)
    assert len(turns) == len(values), "one value for each sampled token"
    counted = np.ones(len(values), np.bool_)
    if not len(values):
        return Credit(values, values, values, counted)
    knobs = {"discount": options.discount, "gae_lambda": options.gae_lambda}
    knobs["last_value"] = float(values[-1]) if options.bootstrap and trajectory.stop in CUT else 0.0
    rewards = token_rewards(turn_rewards(trajectory).tolist(), sampled=counted, turns=turns)
    _, firsts, ordinals = np.unique(turns, return_index=True, return_inverse=True)
    by_turn = np.bincount(ordinals, weights=rewards)
    if options.advantage == "gae":
        advantages = gae(rewards, values, **knobs)
    elif options.advantage == "turn_gae":
        advantages = gae(by_turn, values[firsts], **knobs)[ordinals]
        counted = np.isin(np.arange(len(values)), firsts)
    else:
        advantages = bilevel_gae(by_turn, values, sampled=counted, turns=ordinals, **knobs)
    return Credit(values, advantages, advantages + values, counted)


def with_targets(sequences: Seq[Sequence], credits: Seq[Credit]) -> tuple[Sequence, ...]:
    """Adds the critic's targets. `sequences` are those of the credits' trajectories that sampled
    anything, in order. Every token before which the critic is asked weighs the same."""
    total = max(1, sum(int(credit.counted.sum()) for credit in credits))
    columns = zip(*((own.values, own.returns, own.counted / total) for own in credits), strict=True)
    flats = [np.concatenate([*parts, np.zeros(0)]) for parts in columns]
    given, begin = [], 0
    for sequence in sequences:
        own = slice(begin, begin := begin + sequence.num_sampled)
        given.append(replace(sequence, critic=ValueTargets(*(placed(flat[own], sequence) for flat in flats))))
    return tuple(given)


def sampled_turns(trajectory: Trajectory) -> np.ndarray:
    """(M,) the turn of each sampled token."""
    return np.concatenate([*(s.turns[s.sampled] for s in trajectory.sequences), np.zeros(0, np.int32)])


def placed(sampled: np.ndarray, sequence: Sequence) -> np.ndarray:
    """(T,) the numbers of the sampled tokens at their positions, 0 elsewhere."""
    whole = np.zeros(len(sequence), np.float32)
    whole[sequence.sampled] = sampled
    return frozen_array(whole, np.float32)
