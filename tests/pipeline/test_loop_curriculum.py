"""The loop with groups that are replaced, and with horizons: FakeEngine and FakeTrainer, real feed and buffer."""

from __future__ import annotations

import asyncio
import json

import pytest

from ludus.algorithms import make_algorithm
from ludus.algorithms.filters import group_differs
from ludus.config import AlgorithmConfig, parse_config
from ludus.pipeline.loop import MAX_EMPTY_BATCHES
from tests.pipeline.test_loop import Everything, Setup
from tests.rollout.playing import WatchedEnvironment


class Coins(WatchedEnvironment):
    """The engine always says "a". Of every third task that is right or wrong by the toss of the session's seed; of the others, right."""

    def open(self, task, *, seed):
        session = super().open(task, seed=seed)
        tossed = task.data["number"] % 3 == 0
        self.sessions[-1].words = ["a" if not tossed or seed % 2 else "b"] * self.turns
        return session


class Dynamic(Everything):
    """Replaces groups of equal rewards, and trains on all others."""

    def wants(self, group):
        return make_algorithm(AlgorithmConfig(filter="dynamic")).wants(group)


def trained(setup):
    return [group for batch in setup.trainer.batches for group in batch.groups]


def test_dynamic_sampling_fills_every_batch_with_groups_that_differ_and_counts_the_others(tmp_path):
    setup = Setup(tmp_path, Coins(turns=1), algorithm=Dynamic(), algorithm__filter="dynamic", pipeline__steps=20).run()
    assert [len(batch.groups) for batch in setup.trainer.batches] == [2] * 20
    assert all(group_differs(group) for group in trained(setup))
    replaced = setup.counted("groups/replaced/fake")
    assert replaced > 40, "two of three tasks never differ"
    for line in setup.folder.metrics():
        share = 2 / (2 + line.get("groups/replaced/fake", 0))
        assert line["groups/kept"] == line["groups/kept/fake"] == share
    assert setup.environment.num_open == 0


def test_without_a_filter_nothing_is_replaced(tmp_path):
    setup = Setup(tmp_path, Coins(turns=1), algorithm__filter="none", pipeline__steps=20).run()
    assert setup.counted("groups/replaced") == 0
    assert not all(group_differs(group) for group in trained(setup))


def test_dynamic_sampling_ends_the_run_when_nothing_differs_any_more_and_says_so(tmp_path):
    setup = Setup(tmp_path, WatchedEnvironment(turns=1), algorithm=Dynamic(), algorithm__filter="dynamic").run()
    assert setup.trainer.batches == []
    assert len(setup.events("no_gradient")) == 1
    assert len(setup.environment.sessions) >= 2 * MAX_EMPTY_BATCHES * 2
    assert setup.environment.num_open == 0


def test_dynamic_sampling_at_bound_0_trains_the_same_draws_however_fast_they_are(tmp_path):
    def ids(folder, latency_s):
        environment = Coins(turns=1, latency_s=latency_s)
        setup = Setup(
            folder,
            environment,
            algorithm=Dynamic(),
            algorithm__filter="dynamic",
            pipeline__steps=10,
            pipeline__max_staleness=0,
        ).run()
        return [group.id for group in trained(setup)]

    assert ids(tmp_path / "a", 0.0) == ids(tmp_path / "b", 0.002)


# ------------------------------------------------------------------------------------------------ horizons


def with_horizon(setup, horizon):
    """Environments are given to Setup by hand, so the config names it only for the horizon."""
    data = setup.config.model_dump(mode="json", exclude_none=True)
    setup.config = parse_config({**data, "environments": {"fake": {}}, "horizons": {"fake": horizon}})
    return setup


def test_a_horizon_by_steps_limits_the_turns_of_what_is_drawn_and_the_metric_shows_it(tmp_path):
    setup = Setup(tmp_path, Coins(turns=4), pipeline__steps=6, pipeline__max_staleness=0)
    with_horizon(setup, {"turns": [1, 2, 4], "every": 2}).run()
    limits = [{t.max_turns for g in batch.groups for t in g.trajectories} for batch in setup.trainer.batches]
    assert limits == [{1}, {1}, {2}, {2}, {4}, {4}]
    assert [line["train/max_turns/fake"] for line in setup.folder.metrics()] == [1, 1, 2, 2, 4, 4]
    stops = {(len(t.turns), t.stop.value) for g in trained(setup) for t in g.trajectories}
    assert stops == {(1, "max_turns"), (2, "max_turns"), (4, "done")}


def test_a_horizon_by_success_rises_with_what_is_trained(tmp_path):
    setup = Setup(tmp_path, WatchedEnvironment(turns=1), pipeline__steps=6, pipeline__max_staleness=0)
    setup.environment.open = _always_right(setup.environment)
    with_horizon(setup, {"turns": [1, 3], "success": 1.0, "window": 8}).run()
    limits = [next(iter(batch.groups)).trajectories[0].max_turns for batch in setup.trainer.batches]
    assert limits == [1, 1, 3, 3, 3, 3], "two batches of two groups of two fill the window"


def _always_right(environment):
    opened = environment.open

    def open_(task, *, seed):
        session = opened(task, seed=seed)
        environment.sessions[-1].words = ["a"]
        return session

    return open_


@pytest.mark.parametrize(
    ("turns", "horizon"),
    [(4, {"turns": [1, 2, 3, 4], "every": 2}), (1, {"turns": [1, 2, 4], "success": 0.5, "window": 10})],
)
def test_a_resumed_loop_gives_every_draw_the_limit_it_would_have_had(tmp_path, turns, horizon):
    def limits(setup):
        return [(g.id, t.max_turns) for g in trained(setup) for t in g.trajectories]

    def make(folder, **options):
        return with_horizon(Setup(folder, Coins(turns=turns), pipeline__max_staleness=0, **options), horizon)

    through = make(tmp_path / "through", pipeline__steps=8).run()
    assert len({limit for _, limit in limits(through)}) > 1
    for cut in (1, 2, 4, 7):
        first = make(tmp_path / f"first{cut}", pipeline__steps=cut).run()
        second = make(tmp_path / f"second{cut}", pipeline__steps=8)
        second.restored = json.loads(json.dumps(first.loop.state()))
        second.trainer.batches = list(first.trainer.batches)
        second.engine.versions["current"] = asyncio.run(second.trainer.publish())
        second.run()
        assert limits(second) == limits(through)
