import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.algorithms import make_algorithm
from ludus.algorithms.advantages import differs
from ludus.algorithms.normalisation import TaskOptions, whiten, whiten_by
from ludus.config import AlgorithmConfig
from tests.algorithms.examples import make_group, make_sequence

values = st.lists(
    st.lists(st.floats(-100, 100, width=16), min_size=1, max_size=6).map(lambda v: np.array(v, np.float32)),
    min_size=1,
    max_size=6,
)


@given(values)
def test_every_token_once_gives_mean_0_and_std_1_over_tokens(tokens):
    flat = np.concatenate(whiten(tokens)).astype(np.float64)
    if differs(np.concatenate(tokens)):
        assert flat.mean() == pytest.approx(0, abs=1e-4)
        assert flat.std() == pytest.approx(1, abs=1e-4)
    else:
        assert not flat.any()


@given(values)
def test_every_trajectory_once_gives_mean_0_and_std_1_over_trajectories(tokens):
    done = [own.astype(np.float64) for own in whiten(tokens, statistics="trajectory")]
    if differs(np.concatenate(tokens)):
        assert np.mean([own.mean() for own in done]) == pytest.approx(0, abs=1e-4)
        assert np.mean([(own**2).mean() for own in done]) == pytest.approx(1, abs=1e-4)


@given(values)
def test_scaling_alone_keeps_every_sign(tokens):
    for before, after in zip(tokens, whiten(tokens, centre=False), strict=True):
        assert np.array_equal(np.sign(before), np.sign(after)) or np.abs(before).min() < 1e-6


def test_nothing_to_normalise_is_0_and_no_nan():
    assert whiten([]) == []
    assert [v.tolist() for v in whiten([np.full(3, 0.3, np.float32), np.full(2, 0.1 + 0.2, np.float32)])] == [
        [0] * 3,
        [0] * 2,
    ]
    assert whiten([np.zeros(2, np.float32)], centre=False)[0].tolist() == [0, 0]


def test_keys_do_not_mix():
    ones, hundreds = np.array([0, 1], np.float32), np.array([0, 100], np.float32)
    assert [v.tolist() for v in whiten_by([ones, hundreds], ["a", "b"], TaskOptions(task_normalise="token"))] == [
        [-1, 1],
        [-1, 1],
    ]


# ------------------------------------------------------------------------------------------------ on the tensor the loss consumes


def environments(scale=100.0):
    """Two environments with rewards 100 times apart, trajectories of different lengths, and a group of equal rewards each."""
    groups = []
    for name, factor in (("small", 1.0), ("large", scale)):
        rows = [[[make_sequence(range(1, 2 + length))]] for length in (1, 2, 4)]
        sequences = [own for [own] in rows]
        groups.append(make_group([0.0, factor, 3 * factor], sequences=sequences, environment=name, name=f"{name}-a"))
        groups.append(make_group([factor, factor], environment=name, name=f"{name}-b"))
    return groups


def consumed(environment, batch):
    own = [group for group in batch.groups if group.task.environment == environment]
    ids = {id(s.ids) for group in own for t in group.trajectories for s in t.sequences}
    return np.concatenate([s.advantages[s.sampled] for s in batch.sequences if id(s.ids) in ids]).astype(np.float64)


def task_normalised(**knobs):
    return make_algorithm(AlgorithmConfig(normalise="none", **{"task_normalise": "token"} | knobs)).batch(
        environments()
    )


@pytest.mark.parametrize("rule", ["none", "zero_variance"])
def test_per_environment_the_consumed_advantages_have_mean_0_and_std_1(rule):
    batch = task_normalised(filter=rule)
    for name in ("small", "large"):
        assert consumed(name, batch).mean() == pytest.approx(0, abs=1e-6)
        assert consumed(name, batch).std() == pytest.approx(1, abs=1e-6)
    assert consumed("small", batch) == pytest.approx(consumed("large", batch), abs=1e-6)


def test_without_it_the_large_rewards_drown_the_small():
    batch = make_algorithm(AlgorithmConfig(normalise="none")).batch(environments())
    assert np.abs(consumed("large", batch)).mean() == pytest.approx(100 * np.abs(consumed("small", batch)).mean())


def test_as_published_a_kept_group_of_equal_rewards_gets_minus_mu_by_sigma_and_the_variants_leave_it_at_0():
    def equal_group(batch):
        return [s.advantages[s.sampled][0] for s in batch.sequences][3:5]

    published = equal_group(task_normalised(filter="none"))
    assert published[0] == published[1] != 0
    assert equal_group(task_normalised(filter="none", task_centre=False)) == [0, 0]
    assert len(task_normalised(filter="zero_variance").sequences) == 6, "left out of the batch and of the statistics"


def test_statistics_by_trajectory_do_not_let_long_ones_dominate():
    batch = task_normalised(task_normalise="trajectory")
    firsts = [s.advantages[s.sampled][0] for s in batch.sequences[:3]]
    assert np.mean(firsts) == pytest.approx(0, abs=1e-6)
    assert np.std(firsts) == pytest.approx(1, abs=1e-6)


def test_the_whole_batch_is_whitened_for_reinforce_plus_plus():
    batch = make_algorithm(AlgorithmConfig(advantage="reward", normalise="batch")).batch(environments())
    flat = np.concatenate([s.advantages[s.sampled] for s in batch.sequences]).astype(np.float64)
    assert (flat.mean(), flat.std()) == pytest.approx((0, 1), abs=1e-6)
