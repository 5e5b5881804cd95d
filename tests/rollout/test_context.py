from __future__ import annotations

import pytest

from ludus.rollout import context as context_module
from ludus.rollout.context import Activity
from ludus.types import Task

TASK = Task("t/train/0", "t", "train")


def test_the_seconds_of_all_sessions_are_counted_by_what_they_wait_for(monkeypatch):
    now = 0.0
    monkeypatch.setattr(context_module.time, "monotonic", lambda: now)
    activity = Activity()
    activity.note("a", TASK, "generating")
    activity.note("b", TASK, "generating")
    now = 2.0
    activity.note("a", TASK, "acting")
    now = 5.0
    assert activity.spent() == pytest.approx({"generating": 2 + 5, "acting": 3}), "what goes on counts too"
    activity.forget("a")
    activity.forget("b")
    activity.forget("b")
    now = 9.0
    assert activity.spent() == pytest.approx({"generating": 7, "acting": 3})
