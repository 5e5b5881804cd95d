"""What a run that cannot be honoured gets: an error at its start that says why, or a skip that is counted. No silent zero, no NaN.

A loss or gradient that is not finite has its tests in tests/trainer/test_trainer.py, a missing critic in tests/algorithms/test_credit.py.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ludus.algorithms import make_algorithm
from ludus.config import AlgorithmConfig, CurriculumConfig, load_config
from ludus.errors import CheckpointFailed, ConfigError, EngineFailed, EnvironmentFailed
from ludus.launch import train as local
from ludus.pipeline.feed import Feed
from ludus.pipeline.loop import MAX_EMPTY_BATCHES
from tests.algorithms.examples import make_group
from tests.e2e.runs import make_config, run
from tests.pipeline.test_loop import Setup
from tests.rollout.playing import WatchedEnvironment

PRESETS = Path(__file__).parents[2] / "configs" / "presets"


@pytest.fixture(autouse=True)
def _without_plots(monkeypatch):
    monkeypatch.setattr(local, "write_report", lambda folder: folder.report_file)


@pytest.mark.parametrize(
    ("preset", "overrides", "message"),
    [
        ("dapo", ["environments.guess.options.colour=red"], "colour"),
        ("rloo", ["environments.gess.weight=1.0"], "guess"),
        ("agentrl", ["engine.kind=server", "engine.url=http://127.0.0.1:9/v1"], "training needs 'embedded'"),
    ],
)
def test_a_preset_with_what_its_engine_or_environment_cannot_honour_is_refused_and_leaves_its_name_free(
    preset, overrides, message, tmp_path
):
    config = load_config(PRESETS / f"{preset}.toml", [f"store.folder={tmp_path}", *overrides])
    with pytest.raises((ConfigError, EnvironmentFailed), match=message):
        run(config)
    assert not (config.folder / "config.toml").exists()


@pytest.mark.parametrize(
    ("preset", "overrides", "message"),
    [
        ("scaling-inter", ["horizons.maze.turns=[2, 4]", "horizons.maze.every=3"], "names no environment of this run"),
        ("ppo", ["critic.kind=none", "critic.lr=1e-4"], "counts only with a critic"),
        ("archer", ["critic.kind=head"], "counts only with critic.kind 'archer'|asks another"),
        ("rloo", ["curriculum.tasks=replay", "curriculum.score=positive_value_loss"], "which is a critic's"),
        ("gspo", ["rollout.group_size=1", "rollout.min_group_size=1"], "compares attempts with each other"),
    ],
)
def test_a_preset_whose_keys_contradict_each_other_is_refused(preset, overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_config(PRESETS / f"{preset}.toml", overrides)


def test_a_group_that_lost_all_but_one_attempt_is_dropped_and_counted(tmp_path):
    flaky = WatchedEnvironment(turns=1, fault="raise", fault_in="act", fault_rate=0.6)
    setup = Setup(tmp_path, flaky, pipeline__steps=4).run()
    assert setup.counted("groups/dropped_small/fake") > 0
    assert setup.counted("trajectories/failed/failed") > 0
    assert all(len(group.trajectories) == 2 for batch in setup.trainer.batches for group in batch.groups)


def test_rewards_that_are_no_numbers_fail_their_session_are_counted_and_never_reach_a_step(tmp_path):
    sometimes = WatchedEnvironment(turns=1, fault="nan", fault_in="act", fault_rate=0.3)
    setup = Setup(tmp_path / "some", sometimes, algorithm=make_algorithm(AlgorithmConfig(filter="none"))).run()
    assert len(setup.trainer.batches) == 5
    assert setup.counted("trajectories/failed/failed") > 0
    rewards = [t.reward for batch in setup.trainer.batches for group in batch.groups for t in group.trajectories]
    assert all(map(math.isfinite, rewards))
    always = WatchedEnvironment(turns=1, fault="nan", fault_in="act")
    with pytest.raises(EnvironmentFailed, match="reward is nan; expected a finite number"):
        Setup(tmp_path / "all", always).run()


@pytest.mark.parametrize("kept", ["zero_variance", "top_share", "top_p"])
def test_a_batch_with_nothing_left_after_filtering_is_no_step_but_is_counted_and_ends_the_run_by_name(kept, tmp_path):
    share = {} if kept == "zero_variance" else {"filter_share": 0.5}
    algorithm = make_algorithm(AlgorithmConfig(filter=kept, **share))
    assert algorithm.batch([make_group([0.5, 0.5]), make_group([1.0, 1.0])]).sequences == ()
    alike = Setup(tmp_path, WatchedEnvironment(turns=1), algorithm=algorithm).run()
    assert alike.trainer.batches == []
    assert alike.events("no_gradient")[0]["batches"] == MAX_EMPTY_BATCHES


@pytest.mark.parametrize("tasks", ["uniform", "replay"])
def test_an_environment_with_a_single_task_is_played_again_and_again(tasks):
    (task,) = WatchedEnvironment(turns=1, num_tasks=2).tasks("train")
    feed = Feed({"fake": [task]}, weights={"fake": 1.0}, seed=0, curriculum=CurriculumConfig(tasks=tasks))
    draws = [feed.draw() for _ in range(5)]
    assert {draw.task.id for draw in draws} == {task.id}
    assert len({draw.seed for draw in draws}) == 5, "with other noise each time"


def test_a_stale_policy_that_was_never_loaded_is_an_error_and_never_the_current_one(small_model, tmp_path, monkeypatch):
    plain = {"store": {"checkpoint_every": 2}, "pipeline": {"steps": 2}}
    run(make_config(tmp_path, small_model, **plain))
    stale = {"cross_policy": {"stale": 0.5}, **plain}
    with pytest.raises(CheckpointFailed, match="holds no stale policy"):
        run(make_config(tmp_path, small_model, **stale, evaluation={"num_tasks": 2}), resume=True)

    async def forgets(self, **_):
        return None

    monkeypatch.setattr("ludus.launch.policies.Copies.prepare", forgets)
    with pytest.raises(EngineFailed, match="stale"):
        run(make_config(tmp_path, small_model, name="other", **{**stale, "cross_policy": {"stale": 0.99}}))
