import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.config import AlgorithmConfig

counts = st.lists(st.lists(st.integers(0, 50), max_size=4), min_size=1, max_size=8).filter(
    lambda rows: any(map(any, rows))
)


def token_weights(num_sampled, *, aggregate, constant=0):
    options = {"aggregate_tokens": constant} if constant else {}
    return AlgorithmConfig(aggregate=aggregate, **options).function("aggregate")(num_sampled)


@given(counts, st.sampled_from(["token", "sequence", "trajectory"]))
def test_the_weights_of_all_tokens_sum_to_1(num_sampled, aggregate):
    weights = token_weights(num_sampled, aggregate=aggregate)
    pairs = [pair for own in zip(weights, num_sampled, strict=True) for pair in zip(*own, strict=True)]
    assert sum(weight * count for weight, count in pairs) == pytest.approx(1)


@given(counts)
def test_every_trajectory_that_spoke_has_the_same_share_however_often_it_forked(num_sampled):
    speaking = sum(any(own) for own in num_sampled)
    for aggregate in ("sequence", "trajectory"):
        for own, weights in zip(num_sampled, token_weights(num_sampled, aggregate=aggregate), strict=True):
            share = sum(weight * count for weight, count in zip(weights, own, strict=True))
            assert share == pytest.approx(1 / speaking if any(own) else 0)


def test_token_weights_are_equal_and_trajectory_weights_share_equally():
    assert token_weights([[1], [3]], aggregate="token") == [[1 / 4], [1 / 4]]
    assert token_weights([[1], [1, 2]], aggregate="trajectory") == [[1 / 2], [1 / 6, 1 / 6]]


def test_sequences_of_a_trajectory_share_its_weight_equally():
    assert token_weights([[1], [1, 2]], aggregate="sequence") == [[1 / 2], [1 / 4, 1 / 8]]


def test_with_a_constant_a_long_and_a_short_trajectory_have_the_same_weight_per_token():
    assert token_weights([[1], [3, 0], [0]], aggregate="constant", constant=10) == [[1 / 20], [1 / 20, 0], [0]]


def test_a_trajectory_that_sampled_nothing_is_not_in_the_denominator():
    assert token_weights([[0], [2]], aggregate="trajectory") == [[0], [1 / 2]]
    assert token_weights([[0], []], aggregate="token") == [[0], []]
