"""`ludus eval`: held-out tasks, counted, with intervals; the same tasks and noise for every model."""

from __future__ import annotations

import asyncio

import pytest

from ludus.errors import ConfigError, EnvironmentFailed
from ludus.launch.evaluate import evaluate_model
from ludus.store.run_folder import RunFolder
from tests.e2e.runs import FAKE, make_config


def test_a_report_counts_every_held_out_task_and_carries_intervals(small_model, tmp_path):
    config = make_config(tmp_path, small_model, evaluation={"num_tasks": 3, "attempts": 2})
    report = asyncio.run(evaluate_model(config))
    (row,) = report["environments"]
    assert row["environment"] == "guess"
    assert row["num_trajectories"] == 6
    assert row["success_low"] <= row["success"] <= row["success_high"]
    low, high = report["mean_success"][1:]
    assert low <= report["mean_success"][0] <= high
    folder = RunFolder(config.folder)
    stored = list(folder.read_trajectories())
    assert len(stored) == 6
    assert {s.split for s in stored} == {"test"}
    assert all("/test/" in s.trajectory.task.id for s in stored), "promise 10: no train task is evaluated"
    assert folder.evaluations()[0]["environments"] == report["environments"]


def test_the_same_model_gives_the_same_report(small_model, tmp_path):
    configs = [make_config(tmp_path, small_model, name=name, engine={"deterministic": True}) for name in "ab"]
    first, second = (asyncio.run(evaluate_model(config)) for config in configs)
    assert first == second


def test_an_unknown_split_is_refused_and_the_name_stays_free(small_model, tmp_path):
    config = make_config(tmp_path, small_model, evaluation={"split": "tset"})
    with pytest.raises(ConfigError, match="tset"):
        asyncio.run(evaluate_model(config))
    assert not (config.folder / "config.toml").exists()


def test_attempts_that_the_world_ended_are_reported_as_unscored_not_as_lost(small_model, tmp_path):
    broken = {"fake": {"source": FAKE, "options": {"fault": "raise", "fault_in": "act"}}}
    report = asyncio.run(evaluate_model(make_config(tmp_path, small_model, environments=broken)))
    assert report["environments"][0]["success"] is None


def test_an_environment_that_cannot_be_started_is_named_at_the_start(small_model, tmp_path):
    broken = {"fake": {"source": FAKE, "options": {"fault": "hang", "fault_in": "start", "blocking": False}}}
    config = make_config(tmp_path, small_model, environments=broken, rollout={"turn_timeout_s": 0.05})
    with pytest.raises(EnvironmentFailed, match=rf"'fake' could not be started in 3 tries.*ludus env check {FAKE}"):
        asyncio.run(evaluate_model(config))
    assert not (config.folder / "config.toml").exists()
