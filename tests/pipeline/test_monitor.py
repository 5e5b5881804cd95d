"""The collapse monitor on histories made for it: each sign where it should, none where it should not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.algorithms import make_algorithm
from ludus.config import AlgorithmConfig, MonitorConfig
from ludus.pipeline.measure import step_metrics
from ludus.pipeline.monitor import Monitor, signs
from ludus.trainer.fake import FakeTrainer
from ludus.types import Batch
from tests.algorithms.examples import make_group, make_sequence
from tests.pipeline.test_loop import Setup
from tests.rollout.playing import WatchedEnvironment

CONFIG = MonitorConfig(window=3)
STEADY = {
    "groups/reward_std/guess": [0.4] * 6,
    "train/entropy/guess": [1.0] * 6,
    "train/success/guess": [0.3] * 6,
    "train/repeats/guess": [0.1] * 6,
    "train/turn_tokens/guess": [10.0] * 6,
    "trajectories/invalid_rate/guess": [0.1] * 6,
    "optimizer/grad_norm": [1.0] * 6,
}


def shown(config=CONFIG, **changes):
    history = STEADY | {metric: [*STEADY[metric][:3], *last] for metric, last in changes.items()}
    return [(sign.name, sign.environment) for sign in signs(history, config=config)]


@pytest.mark.parametrize(
    ("metric", "values", "name"),
    [
        ("train/success/guess", [0.07, 0.0, 0.2], "success"),
        ("groups/reward_std/guess", [0.05, 0.05, 0.05], "reward_std"),
        ("train/entropy/guess", [0.1, 0.2, 0.1], "entropy"),
        ("train/repeats/guess", [0.5, 0.6, 0.7], "repeats"),
        ("train/turn_tokens/guess", [40.0, 50.0, 60.0], "turn_tokens"),
        ("trajectories/invalid_rate/guess", [0.6, 0.7, 0.8], "invalid"),
    ],
)
def test_each_sign_shows_alone_in_its_environment(metric, values, name):
    assert shown() == []
    assert shown(**{metric: values}) == [(name, "guess")]


def test_a_growing_gradient_is_a_sign_of_the_whole_run_beyond_what_fewer_groups_explain():
    assert shown(**{"optimizer/grad_norm": [5.0, 13.0, 20.0]}) == [("grad_norm", "the run")]
    assert shown(**{"optimizer/grad_norm": [4.0, 5.0, 6.0]}) == []


def test_one_wild_step_is_no_sign():
    assert shown(**{"optimizer/grad_norm": [1.0, 100.0, 1.0], "groups/reward_std/guess": [0.4, 0.0, 0.4]}) == []


@pytest.mark.parametrize("success", [[0.95, 1.0, 1.0], [0.4, 0.5, 0.4]])
def test_what_falls_where_success_is_full_or_has_grown_was_learnt(success):
    fallen = {"groups/reward_std/guess": [0.0] * 3, "train/entropy/guess": [0.01] * 3}
    assert shown(**fallen, **{"train/success/guess": success}) == []
    assert shown(**fallen, **{"train/success/guess": [0.35] * 3}) == [("reward_std", "guess"), ("entropy", "guess")]


def test_an_environment_that_was_solved_from_the_start_may_fall_silent():
    solved = STEADY | {"train/success/guess": [0.95] * 6, "groups/reward_std/guess": [0.2] * 3 + [0.0] * 3}
    assert signs(solved, config=CONFIG) == []


def test_success_is_compared_with_its_best_however_long_ago():
    monitor = Monitor(CONFIG)
    course = [0.1] * 3 + [0.8] * 6 + [0.15] * 6
    told = [[sign.name for sign in monitor.look({"train/success/guess": success})] for success in course]
    assert [names for names in told if names] == [["success"]]
    assert told.index(["success"]) == 10, "once most of a window has fallen; 0.15 is above what it was at first"


def test_what_is_still_rare_is_no_sign_however_much_it_rose():
    assert shown(**{"train/repeats/guess": [0.29] * 3, "trajectories/invalid_rate/guess": [0.45] * 3}) == []
    rare = STEADY | {"train/repeats/guess": [0.0, 0.0, 0.0, 0.2, 0.2, 0.2]}
    assert signs(rare, config=CONFIG) == []


def test_it_is_silent_before_there_is_a_window_to_compare():
    assert signs({"optimizer/grad_norm": [1, 1, 1, 99, 99]}, config=CONFIG) == []
    assert signs({"optimizer/grad_norm": [1, 1, 1, 99, 99]}, config=MonitorConfig(window=2)) != []


def test_environments_are_watched_apart():
    history = STEADY | {"train/entropy/lake": [1.0] * 3 + [0.1] * 3}
    assert [(s.name, s.environment) for s in signs(history, config=CONFIG)] == [("entropy", "lake")]


LINE = {"train/entropy/guess": 1.0, "train/success/guess": 0.2, "optimizer/grad_norm": 1.0, "tokens/batch": 3.0}
COLLAPSED = LINE | {"train/entropy/guess": 0.05, "optimizer/grad_norm": 50.0}


def test_a_sign_is_told_when_it_appears_and_again_only_after_it_was_gone():
    monitor = Monitor(CONFIG)
    told = [len(monitor.look(line)) for line in [LINE] * 4 + [COLLAPSED] * 4 + [LINE] * 4 + [COLLAPSED] * 3]
    assert told == [0] * 5 + [2] + [0] * 2 + [0] * 4 + [0, 2, 0]


@pytest.mark.parametrize(("stop", "lost"), [(0, False), (1, True), (2, True), (3, False)])
def test_a_run_is_lost_when_so_many_signs_show_at_once_those_of_the_run_counted_in_each_environment(stop, lost):
    monitor = Monitor(MonitorConfig(window=3, stop=stop))
    for line in [LINE] * 3 + [COLLAPSED] * 3:
        monitor.look(line)
    assert monitor.lost is lost


@given(st.lists(st.sampled_from([LINE, COLLAPSED]), min_size=1, max_size=20), st.data())
def test_a_monitor_restored_anywhere_tells_the_same(lines, data):
    cut = data.draw(st.integers(0, len(lines)))
    whole, first, second = (Monitor(CONFIG) for _ in range(3))
    expected = [whole.look(line) for line in lines]
    told = [first.look(line) for line in lines[:cut]]
    second.restore(json.loads(json.dumps(first.state())))
    assert told + [second.look(line) for line in lines[cut:]] == expected


def test_what_is_watched_is_measured():
    ids = [[1, 2, 3, 4, 1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8]]  # the first says one run of four twice, of five
    group = make_group([0.0, 1.0], sequences=[[make_sequence(said, logprobs=[-0.5] * 8)] for said in ids])
    metrics = step_metrics([group], Batch(()), version=0)
    assert metrics["groups/reward_std/bandit"] == 0.5
    assert metrics["train/repeats/bandit"] == pytest.approx(1 / 10)
    assert metrics["train/entropy/bandit"] == pytest.approx(0.5)


class Exploding(FakeTrainer):
    """Its gradient grows tenfold with every step."""

    async def step(self, batch):
        return {**await super().step(batch), "grad_norm": 10.0 ** len(self.batches)}


def test_a_run_is_told_its_signs_and_ends_when_it_is_lost(tmp_path):
    told = Setup(tmp_path / "a", trainer=Exploding(), monitor__window=2, pipeline__steps=6).run()
    (event,) = [each for each in told.folder.events() if each["kind"] == "collapse"]
    assert (event["name"], event["environment"], event["version"]) == ("grad_norm", "the run", 5)
    assert told.trainer.version == 6, "told, and no more"
    ended = Setup(tmp_path / "b", trainer=Exploding(), monitor__window=2, monitor__stop=1, pipeline__steps=60).run()
    assert ended.trainer.version in (5, 6), "the step that was in progress is finished"
    assert ended.loop.stopped
    kinds = [each["kind"] for each in ended.folder.events()]
    assert kinds.index("collapse") < kinds.index("collapsed")
    assert kinds.count("collapsed") == 1


class Ruined(WatchedEnvironment):
    """What is said is right until the policy has moved three times, and never after: all groups are equal then."""

    def open(self, task, *, seed):
        session = super().open(task, seed=seed)
        self.sessions[-1].words = ["a" if len(self.trainer.batches) < 3 and seed % 2 else "b"]
        return session


def test_a_policy_that_gives_no_gradient_any_more_is_told_as_lost_and_not_only_as_out_of_gradient(tmp_path):
    environment = Ruined(turns=1)
    setup = Setup(tmp_path, environment, algorithm=make_algorithm(AlgorithmConfig()), pipeline__steps=60)
    environment.trainer = setup.trainer
    setup.run()
    signs_told = {each["name"] for each in setup.events("collapse")}
    assert {"success", "reward_std"} <= signs_told
    assert setup.trainer.version < 10, "no step was taken when it was told"
    assert setup.events("no_gradient")
