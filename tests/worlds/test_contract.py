"""What every larger world owes: splits that are apart, tasks that can be solved, and no luck."""

import pytest

from tests.worlds.contract import assert_splits_are_apart, assert_the_solver_wins, random_success
from tests.worlds.playing import world

IS_ABOUT = {"database": "question", "knowledge_graph": "question", "textcraft": "goal", "webshop": "asin"}
"""What no two splits may share."""


@pytest.mark.parametrize("name", IS_ABOUT)
def test_the_splits_are_apart(name):
    assert_splits_are_apart(world(name), by=lambda data: data[IS_ABOUT[name]])


@pytest.mark.parametrize("name", IS_ABOUT)
def test_the_solver_always_wins_and_a_random_player_seldom(name):
    assert_the_solver_wins(world(name))
    assert random_success(world(name)) < 0.1
