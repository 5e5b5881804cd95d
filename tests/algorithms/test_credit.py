"""Advantages from a critic's values, on whole trajectories: turns, forks, limits, and what the critic is to learn."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.algorithms import make_algorithm
from ludus.config import AlgorithmConfig, load_config
from ludus.errors import ConfigError
from ludus.types import Stop
from tests.algorithms.examples import group_of, make_conversation

TALK = make_conversation([[1, 2], [3, 4, 5]], [1.0, 2.0])
VALUES = np.array([0.5, 0.1, 0.4, 0.2, 0.3])


def of(advantage, trajectory=TALK, values=VALUES, **knobs):
    estimate = AlgorithmConfig(advantage=advantage, **knobs).function("advantage")
    return estimate(group_of([trajectory]), values=[values])[0]


def test_token_gae_without_decay_or_discount_is_the_return_to_go_minus_the_value():
    assert of("gae").advantages == pytest.approx(np.array([3, 3, 2, 2, 2]) - VALUES)
    assert of("gae").returns == pytest.approx([3, 3, 2, 2, 2])


def test_with_lambda_0_a_token_is_worth_what_the_next_value_gained():
    gained = [0.1 - 0.5, 1 + 0.4 - 0.1, 0.2 - 0.4, 0.3 - 0.2, 2 - 0.3]
    assert of("gae", gae_lambda=0.0).advantages == pytest.approx(gained)


def test_turn_gae_reads_one_value_per_turn_and_every_token_of_the_turn_gets_its_advantage():
    got = of("turn_gae", discount=0.5, gae_lambda=0.8)
    second = 2.0 - 0.4
    first = 1.0 + 0.5 * 0.4 - 0.5 + 0.5 * 0.8 * second
    assert got.advantages == pytest.approx([first] * 2 + [second] * 3)
    assert got.counted.tolist() == [True, False, True, False, False], "the critic is asked before a turn, not inside it"
    assert got.returns[got.counted] == pytest.approx([first + 0.5, 2.0])


def test_bilevel_gae_ends_each_turn_in_its_turns_return():
    got = of("bilevel_gae", discount=0.5)
    second = 2.0
    first = 1.0 + 0.5 * second
    assert got.returns == pytest.approx([first] * 2 + [second] * 3)
    assert got.counted.all()


@given(st.lists(st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=3), min_size=1, max_size=4), st.data())
def test_without_discount_and_with_lambda_1_bilevel_gae_is_token_gae(values, data):
    """So StarPO-S, which is published with 1 and 1, needs no choice between them."""
    rewards = data.draw(st.lists(st.floats(-2, 2, width=32), min_size=len(values), max_size=len(values)))
    talk = make_conversation([[1] * len(own) for own in values], rewards)
    flat = np.concatenate(values).astype(np.float64)
    assert of("bilevel_gae", talk, flat).advantages == pytest.approx(of("gae", talk, flat).advantages, abs=1e-9)


@pytest.mark.parametrize("advantage", ["gae", "turn_gae", "bilevel_gae"])
def test_a_fork_changes_nothing(advantage):
    (whole,) = TALK.sequences
    halves = [replace(whole, sampled=whole.sampled & (whole.turns == turn)) for turn in (0, 1)]
    forked = replace(TALK, sequences=tuple(halves))
    assert of(advantage, forked).advantages == pytest.approx(of(advantage).advantages)


@pytest.mark.parametrize("advantage", ["gae", "turn_gae", "bilevel_gae"])
def test_a_turn_that_sampled_nothing_passes_its_reward_to_the_one_before(advantage):
    (whole,) = TALK.sequences
    masked = replace(TALK, sequences=(replace(whole, sampled=whole.sampled & (whole.turns == 0)),))
    assert of(advantage, masked, VALUES[:2]).returns[0] == pytest.approx(3.0)


@pytest.mark.parametrize(("stop", "last"), [(Stop.DONE, 0.0), (Stop.INVALID, 0.0), (Stop.MAX_TURNS, 0.3)])
def test_only_a_session_that_was_cut_goes_on_with_the_last_value_and_only_where_asked(stop, last):
    cut = replace(TALK, stop=stop)
    assert of("gae", cut, bootstrap=True).returns[-1] == pytest.approx(2.0 + last)
    assert of("gae", cut).returns[-1] == pytest.approx(2.0)


def batch_of(advantage, **knobs):
    group = group_of([TALK, make_conversation([[1], [3]], [0.0, 0.0])])
    asked = []

    def values(trajectories):
        asked.append(len(trajectories))
        return [VALUES, np.array([0.7, 0.6])]

    batch = make_algorithm(AlgorithmConfig(advantage=advantage, **knobs)).batch([group], values=values)
    assert asked == [2]
    return batch


def test_a_batch_carries_what_the_critic_learns_on_sampled_tokens_only_and_its_weights_sum_to_1():
    for advantage, counted in (("gae", 7), ("turn_gae", 4)):
        targets = [(s, s.critic) for s in batch_of(advantage).sequences]
        assert sum(critic.weights.sum() for _, critic in targets) == pytest.approx(1)
        assert sum((critic.weights > 0).sum() for _, critic in targets) == counted
        for sequence, critic in targets:
            for column in (critic.values, critic.returns, critic.weights):
                assert not column[~sequence.sampled].any()
        assert targets[0][1].values[targets[0][0].sampled] == pytest.approx(VALUES)


def test_advantages_of_turns_are_whitened_over_turns_not_over_tokens():
    sequences = batch_of("turn_gae").sequences
    turns = np.concatenate([s.advantages[s.sampled][[0, n]] for s, n in zip(sequences, (2, 1), strict=True)])
    assert [turns.mean(), turns.std()] == pytest.approx([0, 1], abs=1e-6)
    tokens = np.concatenate([s.advantages[s.sampled] for s in batch_of("gae").sequences])
    assert [tokens.mean(), tokens.std()] == pytest.approx([0, 1], abs=1e-6)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.advantage=gae"], "needs a critic, and there is none"),
        (["critic.kind=head"], "asks none"),
        (["critic.lr=0.1"], "counts only with a critic"),
        (["algorithm.advantage=gae", "critic.kind=head", "critic.clip=0.2"], "no value has moved yet"),
        (
            ["algorithm.gae_lambda=0.9"],
            "advantage 'group' has no such option.*: gae, turn_gae, bilevel_gae",
        ),
    ],
)
def test_a_missing_or_idle_critic_is_refused_at_the_start(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, overrides)
