import json
import math
from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.evaluation.statistics import (
    Interval,
    clustered_mean,
    clustered_success,
    mean_interval,
    mean_success,
    pass_at_k,
    student_t,
    summarise,
    wilson,
)
from ludus.types import Action, Observation, Stop, Task, Trajectory, Turn

CLUSTERS = st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=20)


def play(task, *, success, environment="guess", stop=Stop.DONE, num_turns=2):
    last = Observation(reward=float(success), done=True)
    observations = [Observation(invalid=True)] * (num_turns - 1) + [last]
    turns = tuple(Turn(i, Action("x"), seen, num_tokens=10) for i, seen in enumerate(observations))
    return Trajectory(f"{task}", Task(task, environment, "test"), 0, 0, Observation(), turns, (), stop)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (8, 10, 0.4902, 0.9433),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (50, 100, 0.4038, 0.5962),
        (1, 1, 0.2065, 1.0),
    ],
)
def test_wilson_gives_the_values_of_the_tables(successes, n, low, high):
    value, got_low, got_high = wilson(successes, n)
    assert value == successes / n
    assert (got_low, got_high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_its_rate_inside_zero_and_one(case):
    value, low, high = wilson(*case)
    assert 0 <= low <= value <= high <= 1
    assert low < high


@given(CLUSTERS)
def test_clustering_never_narrows_an_interval_below_independence(clusters):
    flat = [success for cluster in clusters for success in cluster]
    naive, clustered = wilson(sum(flat), len(flat)), clustered_success(clusters)
    assert clustered.value == pytest.approx(naive.value)
    assert clustered.high - clustered.low >= naive.high - naive.low - 1e-9
    assert 0 <= clustered.low <= clustered.value + 1e-9
    assert clustered.value <= clustered.high + 1e-9 <= 1 + 1e-8


@given(st.lists(st.booleans(), min_size=2, max_size=30), st.integers(1, 8))
def test_repeating_an_attempt_adds_no_knowledge(outcomes, attempts):
    once = clustered_success([[outcome] for outcome in outcomes])
    again = clustered_success([[outcome] * attempts for outcome in outcomes])
    assert once.value == pytest.approx(again.value)
    assert once.low == pytest.approx(again.low, abs=1e-9)
    assert once.high == pytest.approx(again.high, abs=1e-9)


def test_one_attempt_per_task_gives_plain_wilson():
    outcomes = [True] * 13 + [False] * 7
    assert clustered_success([[outcome] for outcome in outcomes]) == pytest.approx(wilson(13, 20))


def test_the_clustered_mean_of_single_attempts_is_the_textbook_t_interval():
    value, low, high = clustered_mean([[1.0], [2.0], [3.0], [4.0], [5.0]])
    assert value == 3.0
    assert (low, high) == (pytest.approx(3 - 1.9632, abs=3e-3), pytest.approx(3 + 1.9632, abs=3e-3))


def test_one_task_says_nothing_about_others():
    assert clustered_mean([[1.0, 0.0, 1.0]]) == (pytest.approx(2 / 3), -math.inf, math.inf)


@pytest.mark.parametrize(
    ("degrees", "t"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042), (1000, 1.962)],
)
def test_student_t_gives_the_values_of_the_tables(degrees, t):
    assert student_t(degrees) == pytest.approx(t, abs=0.01)


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(1, 4))
def test_pass_at_k_is_the_share_of_draws_with_a_success(attempts, k):
    draws = list(combinations(attempts, k))
    if draws:
        assert pass_at_k([attempts], k).value == pytest.approx(fmean(any(draw) for draw in draws))
    else:
        assert math.isnan(pass_at_k([attempts], k).value)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(40, 80)), min_size=1, max_size=6))
def test_the_mean_over_environments_is_no_wider_than_the_widest(cases):
    parts = [wilson(successes, n) for successes, n in cases]
    mean = mean_interval(parts)
    assert mean.low <= mean.value <= mean.high
    assert mean.high - mean.low <= max(part.high - part.low for part in parts) + 1e-9


def test_the_mean_over_environments_narrows_with_their_number():
    part = Interval(0.5, 0.4, 0.6)
    assert mean_interval([part] * 4) == pytest.approx((0.5, 0.45, 0.55))


def test_failed_sessions_are_shown_and_never_counted_against_the_model():
    trajectories = [play("a", success=True), play("b", success=False), play("c", success=True, stop=Stop.FAILED)]
    (result,) = summarise(trajectories)
    assert (result.num_tasks, result.num_trajectories, result.num_unscored, result.success) == (2, 2, 1, 0.5)
    assert result.stops == {"done": 2, "failed": 1}
    assert (result.turns, result.tokens, result.invalid_rate, result.reward) == (2, 20, 0.5, 0.5)


def test_results_are_one_per_environment_in_order_and_their_mean_weighs_them_the_same():
    trajectories = [play(f"w{i}", success=True, environment="walk") for i in range(9)] + [play("g", success=False)]
    results = summarise(trajectories)
    assert [result.environment for result in results] == ["guess", "walk"]
    assert mean_success(results).value == 0.5


def test_pass_at_k_is_reported_up_to_the_attempts_that_every_task_has():
    trajectories = [play(task, success=attempt == 0) for task in "ab" for attempt in range(5)]
    (result,) = summarise(trajectories)
    assert set(result.pass_at_k) == {2, 4, 5}
    assert result.pass_at_k[2] == pytest.approx(0.4)


def test_an_environment_that_only_failed_is_unknown_not_zero():
    results = summarise([play("a", success=True, stop=Stop.TURN_TIMEOUT), play("b", success=True, environment="walk")])
    assert math.isnan(results[0].success)
    assert math.isnan(mean_success(results).value)
    assert json.loads(json.dumps(results[0].to_dict(), allow_nan=False))["success"] is None


def test_an_interval_prints_itself():
    assert str(wilson(8, 10)) == "80.0% [49.0%, 94.3%]"
