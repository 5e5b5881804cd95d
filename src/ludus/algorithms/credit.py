"""Advantages from a critic's values, and the returns that the critic learns from.

    gae           GAE over all sampled tokens of a trajectory, across turns    PPO (1707.06347)
    turn_gae      GAE over turns, V read before a turn's first token           Agent-R1 (2511.14460)
    bilevel_gae   GAE over turns, then over each turn's tokens, undiscounted   VAGEN, RAGEN (2504.20073)

Returns are advantage + value. Promise: the recursion runs over sampled tokens, or over turns that
sampled any; observations neither discount nor carry anything. With `bootstrap`, a session that a limit
cut continues with the value before its last token, because the value after it is not computed. One
that was done, or that ended for invalid actions, never does.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from pydantic import Field

from ludus.algorithms.advantages import Discounted
from ludus.algorithms.registry import advantage
from ludus.algorithms.returns import bilevel_gae, gae, token_rewards, turn_rewards
from ludus.config import Section
from ludus.types import Group, Sequence, Stop, Trajectory, ValueTargets, frozen_array

CUT = (Stop.MAX_TURNS, Stop.MAX_TOKENS, Stop.MAX_TURN_TOKENS)


class CreditOptions(Section):
    normalise: Literal["none", "batch"] = "batch"
    """batch: whiten over the batch's sampled tokens (turn_gae: over its turns). none: off."""
    gae_lambda: float = Field(default=1.0, ge=0, le=1)
    """GAE lambda. 1 uses full returns, 0 the critic's one-step estimate."""
    bootstrap: bool = False
    """Continue a session that a limit cut with the critic's last value, as if it had not ended."""


class TurnOptions(CreditOptions, Discounted):
    pass


class TokenOptions(CreditOptions):
    discount: float = Field(default=1.0, gt=0, le=1)
    """Discount gamma per sampled token."""


@dataclass(frozen=True, slots=True, eq=False)
class Credit:
    """Over the M sampled tokens of a trajectory, in order."""

    values: np.ndarray
    advantages: np.ndarray
    returns: np.ndarray
    counted: np.ndarray  # bool: the tokens before which the critic is asked


@dataclass(frozen=True, slots=True, eq=False)
class _Chain:
    """What GAE runs over: the sampled tokens of one trajectory."""

    values: np.ndarray
    rewards: np.ndarray  # of a turn, on its last token
    turns: np.ndarray  # ordinal of the token's turn, among those that sampled any
    firsts: np.ndarray  # the first token of each turn
    knobs: dict[str, float]

    @property
    def turn_rewards(self) -> np.ndarray:
        return np.bincount(self.turns, weights=self.rewards)


Advantages = Callable[[_Chain], tuple[np.ndarray, np.ndarray]]


@advantage("gae", critics=("head", "model"))
def token_credit(group: Group, options: TokenOptions, values: Seq[np.ndarray]) -> list[Credit]:
    def advantages(chain: _Chain) -> tuple[np.ndarray, np.ndarray]:
        return gae(chain.rewards, chain.values, **chain.knobs), np.ones(len(chain.values), np.bool_)

    return _credits(group, options, values, advantages)


@advantage("turn_gae", critics=("head", "model"))
def turn_credit(group: Group, options: TurnOptions, values: Seq[np.ndarray]) -> list[Credit]:
    def advantages(chain: _Chain) -> tuple[np.ndarray, np.ndarray]:
        by_turn = gae(chain.turn_rewards, chain.values[chain.firsts], **chain.knobs)
        return by_turn[chain.turns], np.isin(np.arange(len(chain.values)), chain.firsts)

    return _credits(group, options, values, advantages)


@advantage("bilevel_gae", critics=("head", "model"))
def bilevel_credit(group: Group, options: TurnOptions, values: Seq[np.ndarray]) -> list[Credit]:
    def advantages(chain: _Chain) -> tuple[np.ndarray, np.ndarray]:
        sampled = np.ones(len(chain.values), np.bool_)
        own = bilevel_gae(chain.turn_rewards, chain.values, sampled=sampled, turns=chain.turns, **chain.knobs)
        return own, sampled

    return _credits(group, options, values, advantages)


def _credits(
    group: Group, options: TokenOptions | TurnOptions, values: Seq[np.ndarray], advantages: Advantages
) -> list[Credit]:
    credits = []
    for trajectory, own in zip(group.trajectories, values, strict=True):
        estimates, counted = advantages(_chain(trajectory, own, options)) if len(own) else (own, own.astype(np.bool_))
        credits.append(Credit(own, estimates, estimates + own, counted))
    return credits


def _chain(trajectory: Trajectory, values: np.ndarray, options: TokenOptions | TurnOptions) -> _Chain:
    turns = np.concatenate([*(s.turns[s.sampled] for s in trajectory.sequences), np.zeros(0, np.int32)])
    assert len(turns) == len(values), "one value for each sampled token"
    last_value = float(values[-1]) if options.bootstrap and trajectory.stop in CUT else 0.0
    rewards = token_rewards(turn_rewards(trajectory).tolist(), sampled=np.ones(len(values), np.bool_), turns=turns)
    _, firsts, ordinals = np.unique(turns, return_index=True, return_inverse=True)
    knobs = {"discount": options.discount, "gae_lambda": options.gae_lambda, "last_value": last_value}
    return _Chain(values, rewards, ordinals, firsts, knobs)


def with_targets(sequences: Seq[Sequence], credits: Seq[Credit]) -> tuple[Sequence, ...]:
    """Adds the critic's targets. `sequences` are those of the credits' trajectories that sampled
    anything, in order. Every token before which the critic is asked weighs the same."""
    total = max(1, sum(int(credit.counted.sum()) for credit in credits))
    columns = (
        [credit.values for credit in credits],
        [credit.returns for credit in credits],
        [credit.counted / total for credit in credits],
    )
    flats = [np.concatenate([*parts, np.zeros(0)]) for parts in columns]
    given, begin = [], 0
    for sequence in sequences:
        own = slice(begin, begin := begin + sequence.num_sampled)
        given.append(replace(sequence, critic=ValueTargets(*(_placed(flat[own], sequence) for flat in flats))))
    return tuple(given)


def _placed(sampled: np.ndarray, sequence: Sequence) -> np.ndarray:
    whole = np.zeros(len(sequence), np.float32)
    whole[sequence.sampled] = sampled
    return frozen_array(whole, np.float32)
