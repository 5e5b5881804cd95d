"""Two models on the same tasks: known values, and the coverage of the interval by enumeration."""

from __future__ import annotations

import json
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.errors import ConfigError
from ludus.evaluation.compare import compare, mcnemar, mean_difference, paired_difference
from ludus.types import Action, Observation, Stop, Task, Trajectory, Turn


def attempt(task, success, *, index=0, environment="guess", stop=Stop.DONE, **data):
    turn = Turn(0, Action("x"), Observation(reward=float(success), done=True), num_tokens=1)
    record = Task(task, environment, "test", data)
    return Trajectory(f"{task}.{index}", record, index, 0, Observation(), (turn,), (), stop)


@pytest.mark.parametrize(
    ("wins", "losses", "p"), [(0, 0, 1.0), (5, 0, 0.0625), (1, 9, 0.021484), (12, 12, 1.0), (10, 2, 0.038574)]
)
def test_mcnemar_gives_the_values_of_the_binomial_table(wins, losses, p):
    assert mcnemar(wins, losses) == mcnemar(losses, wins) == pytest.approx(p, abs=1e-6)


def test_the_interval_is_that_of_bonett_and_price():
    """By hand, for 50 tasks with 10 won and 3 lost: (11 - 4) / 52 and the Wald variance of the adjusted shares."""
    shares = 11 / 52, 4 / 52
    half = 1.959964 * ((sum(shares) - (shares[0] - shares[1]) ** 2) / 52) ** 0.5
    value, low, high = paired_difference([1.0] * 10 + [-1.0] * 3 + [0.0] * 37)
    assert value == pytest.approx(0.14)
    assert low == pytest.approx(shares[0] - shares[1] - half, abs=1e-6)
    assert high == pytest.approx(shares[0] - shares[1] + half, abs=1e-6)


def covered(n, won, lost):
    """The exact chance that the interval holds the true difference, over all outcomes of n tasks."""
    chance = 0.0
    for wins in range(n + 1):
        for losses in range(n + 1 - wins):
            same = n - wins - losses
            _, low, high = paired_difference([1.0] * wins + [-1.0] * losses + [0.0] * same)
            if low - 1e-12 <= won - lost <= high + 1e-12:
                chance += comb(n, wins) * comb(n - wins, losses) * won**wins * lost**losses * (1 - won - lost) ** same
    return chance


@pytest.mark.parametrize("n", [3, 8, 20])
def test_the_interval_covers_the_truth_in_19_of_20_cases(n):
    chances = [covered(n, won / 10, lost / 10) for won in range(11) for lost in range(11 - won)]
    assert sum(chances) / len(chances) >= 0.95
    assert min(chances) >= 0.89


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=1, max_size=30))
def test_the_interval_holds_its_value_never_is_a_point_and_turns_with_the_sides(differences):
    value, low, high = paired_difference(differences)
    assert -1 <= low <= value <= high <= 1
    assert low < high
    assert paired_difference([-each for each in differences]) == pytest.approx((-value, -high, -low))


def test_only_what_both_have_played_and_the_world_let_stand_is_compared():
    a = [attempt("t1", False), attempt("t2", True), attempt("t3", False), attempt("t4", True, stop=Stop.FAILED)]
    b = [attempt("t1", True), attempt("t2", True), attempt("t4", True), attempt("t5", True)]
    (result,) = compare(a, b)
    assert (result.num_tasks, result.num_pairs, result.num_unpaired) == (2, 2, 3)
    assert (result.success_a, result.success_b, result.difference.value) == (0.5, 1.0, 0.5)
    assert (result.wins, result.losses, result.p) == (1, 0, 1.0)


def test_several_attempts_at_a_task_count_once():
    a = [attempt("t", success, index=i) for i, success in enumerate((True, False, False, False))]
    b = [attempt("t", True, index=i) for i in range(4)]
    (result,) = compare(a, b)
    assert (result.num_tasks, result.num_pairs, result.wins) == (1, 4, 1)
    assert result.difference.value == 0.75
    assert result.reward_difference.value == 0.75


def test_environments_weigh_the_same_and_the_result_is_json():
    a = [attempt(f"g{i}", False) for i in range(9)] + [attempt("w", False, environment="walk")]
    b = [attempt(f"g{i}", True) for i in range(9)] + [attempt("w", False, environment="walk")]
    results = compare(a, b)
    assert [each.environment for each in results] == ["guess", "walk"]
    assert mean_difference(results).value == 0.5
    assert json.loads(json.dumps(results[1].to_dict(), allow_nan=False))["difference"][0] == 0.0


def test_nothing_in_common_and_tasks_that_only_share_their_name_are_refused():
    with pytest.raises(ConfigError, match="nothing to compare: 1 scored attempts here and 1 there"):
        compare([attempt("t1", True)], [attempt("t2", True)])
    with pytest.raises(ConfigError, match="'t1' differs between the evaluations"):
        compare([attempt("t1", True, low=1)], [attempt("t1", True, low=2)])
