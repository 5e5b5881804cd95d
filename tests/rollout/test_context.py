from __future__ import annotations

import pytest

from ludus.rollout.context import Activity


def test_the_seconds_of_all_sessions_are_counted_by_what_they_wait_for():
    now = 0.0
    activity = Activity(lambda: now)
    activity.note("a", "generating")
    activity.note("b", "generating")
    now = 2.0
    activity.note("a", "acting")
    now = 5.0
    assert activity.spent() == pytest.approx({"generating": 2 + 5, "acting": 3}), "what goes on counts too"
    activity.forget("a")
    activity.forget("b")
    activity.forget("b")
    now = 9.0
    assert activity.spent() == pytest.approx({"generating": 7, "acting": 3})
