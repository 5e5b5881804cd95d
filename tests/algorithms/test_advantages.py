import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.algorithms.advantages import differs, group_advantages, leave_one_out_advantages

rewards = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=12)


def test_std_normalisation_divides_by_the_deviation_over_n():
    assert group_advantages([0.0, 1.0], normalise="std").tolist() == [-1.0, 1.0]
    expected = (np.array([1.0, 2.0, 6.0]) - 3.0) / np.std([1.0, 2.0, 6.0])
    assert group_advantages([1.0, 2.0, 6.0], normalise="std") == pytest.approx(expected, rel=1e-6)


def test_without_normalisation_the_reward_is_only_centred():
    assert group_advantages([1.0, 2.0, 6.0], normalise="none").tolist() == [-2.0, -1.0, 3.0]


def test_scaling_the_rewards_scales_centred_advantages_and_leaves_normalised_ones():
    few, many = np.array([0.0, 1.0, 4.0]), np.array([0.0, 100.0, 400.0])
    assert group_advantages(many, normalise="none") == pytest.approx(100 * group_advantages(few, normalise="none"))
    assert group_advantages(many, normalise="std") == pytest.approx(group_advantages(few, normalise="std"))


@pytest.mark.parametrize("normalise", ["std", "none"])
@pytest.mark.parametrize(
    "equal",
    [
        [0.0] * 8,
        [0.1 + 0.2, 0.3, 0.3],
        [1 - 0.9 - 0.1, 0.0],
        [*list(np.float32([7.1, 7.1])), 7.1],
        [1e6, 1e6 + 0.1],
        [5.0],
    ],
)
def test_equal_rewards_give_exactly_zero_also_when_rounding_sets_them_apart(equal, normalise):
    assert group_advantages(equal, normalise=normalise).tolist() == [0.0] * len(equal)


@given(rewards, st.randoms(use_true_random=False), st.sampled_from(["std", "none"]))
def test_a_permutation_of_the_group_permutes_the_advantages_bit_for_bit(values, random, normalise):
    order = list(range(len(values)))
    random.shuffle(order)
    straight = group_advantages(values, normalise=normalise)
    shuffled = group_advantages([values[i] for i in order], normalise=normalise)
    assert shuffled.tolist() == straight[order].tolist()


@given(rewards)
def test_normalised_advantages_are_zero_or_have_mean_0_and_deviation_1(values):
    advantages = group_advantages(values, normalise="std").astype(np.float64)
    if differs(values):
        assert advantages.mean() == pytest.approx(0, abs=1e-5)
        assert advantages.std() == pytest.approx(1, abs=1e-5)
    else:
        assert not advantages.any()


@pytest.mark.parametrize("equal", [[0.1 + 0.2, 0.3], [5.0], []])
def test_equal_rewards_left_out_one_by_one_give_exactly_zero(equal):
    assert leave_one_out_advantages(equal).tolist() == [0.0] * len(equal)


@given(st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=12))
def test_leaving_one_out_is_centring_times_n_over_n_minus_1(values):
    size = len(values)
    centred = group_advantages(values, normalise="none")
    assert leave_one_out_advantages(values) == pytest.approx(centred * size / (size - 1), rel=1e-5, abs=1e-4)
