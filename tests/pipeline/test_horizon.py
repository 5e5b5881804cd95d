"""Limits on turns: a pure function of the run's state."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.config import HorizonConfig, parse_config
from ludus.errors import ConfigError
from ludus.pipeline.horizon import Horizons, Phase, advance, scheduled
from tests.pipeline.played import make_tasks, played

TASK = make_tasks("maze", 1)[0]


@pytest.mark.parametrize(("step", "limit"), [(0, 5), (99, 5), (100, 8), (199, 8), (200, 10), (100_000, 10)])
def test_a_schedule_changes_exactly_at_its_borders_and_ends_with_the_last_limit(step, limit):
    assert scheduled([5, 8, 10], every=100, step=step) == limit


@given(st.integers(0, 60), st.integers(1, 10))
def test_a_schedule_resumed_at_any_step_has_the_limits_of_a_run_that_never_stopped(step, every):
    config = {"maze": HorizonConfig(turns=[2, 4, 9], every=every)}
    through, resumed = Horizons(config), Horizons(config)
    through.learn([played(TASK, [1.0], max_turns=2)] * step)
    resumed.restore(json.loads(json.dumps(through.state())))
    assert resumed.limit("maze", step=step) == through.limit("maze", step=step)
    assert through.limit("other", step=step) is None


SUCCESS = HorizonConfig(turns=[2, 4, 9], success=0.75, window=4)


def test_success_raises_the_limit_once_enough_of_the_window_succeeded_and_starts_a_new_window():
    phase = advance(Phase(), [True, True, False], config=SUCCESS)
    assert phase == Phase(0, (True, True, False)), "the window is not full"
    assert advance(phase, [True], config=SUCCESS) == Phase(1)
    assert advance(phase, [False, True, True], config=SUCCESS) == Phase(0, (False, False, True, True))


def test_success_never_goes_past_the_last_limit():
    assert advance(Phase(), [True] * 100, config=SUCCESS).index == 2


def test_groups_played_under_an_earlier_limit_say_nothing_about_the_present_one():
    horizons = Horizons({"maze": SUCCESS})
    horizons.learn([played(TASK, [1.0] * 4, max_turns=2)])
    assert horizons.limit("maze", step=0) == 4
    horizons.learn([played(TASK, [1.0] * 8, max_turns=2)])
    assert horizons.limit("maze", step=0) == 4
    horizons.learn([played(TASK, [1.0] * 4, max_turns=4)])
    assert horizons.limit("maze", step=0) == 9


@given(st.lists(st.booleans(), max_size=40), st.integers(0, 40))
def test_a_horizon_by_success_resumed_anywhere_goes_on_the_same(successes, cut):
    def fed(horizons, some):
        limits = []
        for success in some:
            limits.append(horizons.limit("maze", step=0))
            horizons.learn([played(TASK, [float(success)], max_turns=limits[-1])])
        return limits

    through = Horizons({"maze": SUCCESS})
    expected = fed(through, successes)
    first, second = Horizons({"maze": SUCCESS}), Horizons({"maze": SUCCESS})
    got = fed(first, successes[:cut])
    second.restore(json.loads(json.dumps(first.state())))
    assert got + fed(second, successes[cut:]) == expected
    assert second.state() == through.state()


@pytest.mark.parametrize(
    ("horizon", "message"),
    [
        ({"turns": [3]}, "needs `every`.*or `success`"),
        ({"turns": [3], "every": 2, "success": 0.5}, "one of them only"),
        ({"turns": [], "every": 2}, "turns"),
        ({"turns": [0], "every": 2}, "at least 1"),
        ({"turns": [3], "every": 2, "window": 9}, "only with `success`"),
    ],
)
def test_a_horizon_that_means_nothing_is_refused(horizon, message):
    with pytest.raises(ConfigError, match=message):
        parse_config({"environments": {"guess": {}}, "horizons": {"guess": horizon}})


def test_a_horizon_of_no_environment_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"horizons.gues names no environment of this run; known: guess"):
        parse_config({"environments": {"guess": {}}, "horizons": {"gues": {"turns": [3], "every": 2}}})
