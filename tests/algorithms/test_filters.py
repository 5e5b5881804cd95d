import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.algorithms import make_algorithm
from ludus.algorithms.filters import rescaled, reward_std
from ludus.config import AlgorithmConfig
from ludus.config.pieces import KINDS
from tests.algorithms.examples import make_group


def groups_with(*deviations):
    """Pairs whose reward std is the given one."""
    return [make_group([-d, d], name=f"g{i}") for i, d in enumerate(deviations)]


def kept(groups, **how):
    return [group.id for group in keep(groups, **how)]


def keep(groups, *, rule, share=1.0):
    return KINDS["filter"].find(rule).function(groups, options=SimpleNamespace(filter_share=share))


def test_zero_variance_also_by_rounding_is_left_out_and_none_keeps_all():
    groups = [*groups_with(0.0, 1.0), make_group([0.1 + 0.2, 0.3], name="g2")]
    assert kept(groups, rule="none") == ["g0", "g1", "g2"]
    assert kept(groups, rule="zero_variance") == kept(groups, rule="dynamic") == ["g1"]


def test_the_top_share_is_of_all_groups_by_reward_std_in_the_order_they_came():
    groups = groups_with(0.1, 0.9, 0.0, 0.5, 0.3, 0.0, 0.2, 0.4)
    assert kept(groups, rule="top_share", share=0.25) == ["g1", "g3"]
    assert kept(groups, rule="top_share", share=1.0) == ["g0", "g1", "g3", "g4", "g6", "g7"], (
        "never one without a difference"
    )
    assert kept(groups[:1], rule="top_share", share=0.01) == ["g0"], "at least one"


def test_linear_top_p_keeps_only_the_useful_where_half_has_no_variance():
    groups = groups_with(1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0)
    assert kept(groups, rule="top_p", share=0.9) == ["g0", "g2", "g4", "g6"]


def test_linear_top_p_stops_as_soon_as_the_share_is_held():
    groups = groups_with(1.0, 6.0, 3.0)
    assert kept(groups, rule="top_p", share=0.6) == ["g1"]
    assert kept(groups, rule="top_p", share=0.61) == ["g1", "g2"]


@given(st.lists(st.floats(0, 10, width=16), min_size=1, max_size=10), st.floats(0.01, 1), st.floats(0.1, 100))
def test_the_scale_of_rewards_does_not_decide_what_is_kept(deviations, share, scale):
    deviations = [d for d in deviations if d == 0 or d > 1e-2]
    for rule in ("top_share", "top_p"):
        small, large = groups_with(*deviations), groups_with(*(scale * d for d in deviations))
        assert len(kept(small, rule=rule, share=share)) == pytest.approx(
            len(kept(large, rule=rule, share=share)), abs=1
        )


def test_for_binary_rewards_the_score_is_the_root_of_learnability():
    assert reward_std(make_group([0, 0, 0, 1])) == pytest.approx(math.sqrt(0.25 * 0.75))
    assert reward_std(make_group([1.0, 1.0])) == 0


def test_the_kept_share_is_logged_and_rescales_the_loss_where_asked():
    groups = groups_with(1.0, 0.5, 0.0, 0.0)
    for rescale, factor in (("none", 1.0), ("linear", 0.25), ("sqrt", 0.5)):
        config = AlgorithmConfig(filter="top_share", filter_share=0.25, filter_rescale=rescale)
        batch = make_algorithm(config).batch(groups)
        assert batch.metrics["groups/kept"] == 0.25
        assert sum(s.weights.sum() for s in batch.sequences) == pytest.approx(factor)
        assert rescaled(0.25, rescale=rescale) == factor


def test_a_batch_with_nothing_left_is_empty():
    assert (
        make_algorithm(AlgorithmConfig(filter="top_p", filter_share=0.9)).batch(groups_with(0.0, 0.0)).sequences == ()
    )
