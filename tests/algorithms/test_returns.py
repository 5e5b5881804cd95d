import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.algorithms.returns import bilevel_gae, gae, return_to_go, token_rewards, turn_rewards
from tests.algorithms.examples import make_conversation

numbers = st.floats(-10, 10, width=32)
shares = st.floats(0, 1, width=32)
chains = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=12)


def by_definition(rewards, values, *, discount, gae_lambda, last_value):
    """A_t = sum over l of (gamma lambda)^l delta_{t+l}: no recursion, so that a wrong one shows."""
    following = [*values[1:], last_value]
    deltas = [r + discount * v_next - v for r, v_next, v in zip(rewards, following, values, strict=True)]
    return [
        sum((discount * gae_lambda) ** (later - t) * deltas[later] for later in range(t, len(deltas)))
        for t in range(len(deltas))
    ]


@given(chains, shares, shares, numbers)
def test_gae_is_its_definition(chain, discount, gae_lambda, last_value):
    rewards, values = (np.array(column, dtype=np.float64) for column in zip(*chain, strict=True))
    settings = {"discount": discount, "gae_lambda": gae_lambda, "last_value": last_value}
    assert gae(rewards, values, **settings) == pytest.approx(by_definition(rewards, values, **settings), abs=1e-9)


@given(chains)
def test_without_discount_and_decay_gae_is_the_return_to_go_minus_the_value(chain):
    rewards, values = (np.array(column, dtype=np.float64) for column in zip(*chain, strict=True))
    expected = return_to_go(rewards, discount=1.0) - values
    assert gae(rewards, values, discount=1.0, gae_lambda=1.0) == pytest.approx(expected, abs=1e-9)


def test_with_exact_values_of_a_chain_every_advantage_is_0_and_a_cut_one_bootstraps():
    values = np.array([0.25, 0.5, 1.0])  # 1 at the end of the chain, halved on the way
    assert gae(np.array([0, 0, 1.0]), values, discount=0.5, gae_lambda=0.7) == pytest.approx(0)
    cut = gae(np.zeros(2), values[:2], discount=0.5, gae_lambda=0.7, last_value=1.0)
    assert cut == pytest.approx(0)
    assert gae(np.zeros(2), values[:2], discount=0.5, gae_lambda=0.7)[1] == pytest.approx(-0.5)


def test_rewards_are_credited_to_the_turn_that_earned_them_and_to_those_before_it():
    assert return_to_go(np.array([0.0, 1.0, 0.0]), discount=0.5).tolist() == [0.5, 1.0, 0.0]
    trajectory = make_conversation([[1], [2, 3], [4]], [0.5, 0.0, 2.0])
    assert turn_rewards(trajectory).tolist() == [0.5, 0.0, 2.0]


def test_a_turns_reward_lies_on_its_last_sampled_token_also_before_a_trailing_observation():
    sampled = np.array([0, 1, 1, 0, 1, 0, 0], dtype=bool)
    turns = np.array([0, 0, 0, 1, 1, 2, 2])
    assert token_rewards([1.0, 2.0, 4.0], sampled=sampled, turns=turns).tolist() == [0, 0, 1, 0, 6, 0, 0], (
        "turn 2 sampled nothing: its reward stays with the last token that was"
    )


def token_gae(rewards, values, *, sampled, **settings):
    """Over the sampled tokens of a row that holds observations too, which get 0."""
    advantages = np.zeros(len(sampled))
    advantages[sampled] = gae(rewards[sampled], values[sampled], **settings)
    return advantages


@given(st.lists(st.tuples(numbers, numbers, st.booleans()), min_size=1, max_size=12), shares, shares)
def test_inserted_observation_tokens_change_nothing(tokens, discount, gae_lambda):
    rewards, values, sampled = (np.array(column) for column in zip(*tokens, strict=True))
    rewards = np.where(sampled, rewards, 0.0)
    got = token_gae(rewards, values, sampled=sampled, discount=discount, gae_lambda=gae_lambda)
    alone = gae(rewards[sampled], values[sampled], discount=discount, gae_lambda=gae_lambda)
    assert got[sampled] == pytest.approx(alone)
    assert not got[~sampled].any()


SAMPLED = np.array([0, 1, 1, 1, 0, 0, 1, 1, 1], dtype=bool)
TURNS = np.array([0, 0, 0, 0, 1, 1, 1, 1, 1])
VALUES = np.array([9, 0.1, 0.2, 0.3, 9, 9, 0.4, 0.5, 0.6])


@pytest.mark.parametrize("rewards", [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (2.0, -1.0)])
def test_bilevel_gae_of_two_turns_of_three_tokens_by_hand(rewards):
    got = bilevel_gae(
        np.array(rewards),
        VALUES,
        sampled=SAMPLED,
        turns=TURNS,
        discount=0.95,
        gae_lambda=0.5,
        token_discount=0.9,
        token_lambda=0.8,
    )
    second = rewards[1] - 0.6
    first = rewards[0] + 0.95 * 0.6 - 0.3 + 0.95 * 0.5 * second
    expected = np.zeros(9)
    for end, turn in ((3, first), (8, second)):
        expected[end] = turn
        for t in (end - 1, end - 2):
            expected[t] = 0.9 * VALUES[t + 1] - VALUES[t] + 0.9 * 0.8 * expected[t + 1]
    assert got == pytest.approx(expected)


def test_bilevel_gae_keeps_the_turn_discount_where_the_first_reward_is_0():
    zeros = np.zeros(9)
    got = bilevel_gae(np.array([0.0, 1.0]), zeros, sampled=SAMPLED, turns=TURNS, discount=0.95, gae_lambda=1.0)
    assert got[SAMPLED].tolist() == pytest.approx([0.95] * 3 + [1.0] * 3)
