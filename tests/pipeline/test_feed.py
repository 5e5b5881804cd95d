"""The feed: weights kept, cursor exact, the same in any process."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.config import CurriculumConfig
from ludus.errors import ConfigError
from ludus.pipeline.feed import Feed
from ludus.types import Batch, Task
from tests.pipeline.played import played


def make_feed(seed=0, sizes=(5, 7), weights=(1.0, 2.0), curriculum=None):
    names = [f"world{i}" for i in range(len(sizes))]
    tasks = {n: [Task(f"{n}/train/{k}", n, "train") for k in range(size)] for n, size in zip(names, sizes, strict=True)}
    return Feed(tasks, weights=dict(zip(names, weights, strict=True)), seed=seed, curriculum=curriculum)


@given(
    weights=st.lists(st.floats(0.1, 10), min_size=1, max_size=4), draws=st.integers(1, 200), seed=st.integers(0, 1000)
)
def test_shares_never_drift_from_the_weights_by_more_than_one_draw(weights, draws, seed):
    feed = make_feed(seed, sizes=[3] * len(weights), weights=weights)
    drawn = [feed.draw().task.environment for _ in range(draws)]
    for i, weight in enumerate(weights):
        share = draws * weight / sum(weights)
        assert abs(drawn.count(f"world{i}") - share) <= len(weights)


@given(before=st.integers(0, 50), after=st.integers(1, 30))
def test_a_restored_feed_continues_as_if_it_had_not_stopped(before, after):
    feed = make_feed()
    for _ in range(before):
        feed.draw()
    state = json.loads(json.dumps(feed.state()))
    resumed = make_feed()
    resumed.restore(state)
    assert [feed.draw() for _ in range(after)] == [resumed.draw() for _ in range(after)]


@pytest.mark.parametrize("mix", ["weights", "tokens", "success"])
@given(before=st.integers(0, 40), held=st.integers(0, 3))
def test_a_feed_that_learns_from_what_was_played_continues_as_if_it_had_not_stopped(mix, before, held):
    """Draws that are in progress when it stops, `held` of them, are drawn again first."""
    curriculum = CurriculumConfig(tasks="replay", mix=mix)

    def go_on(feed, draws):
        for draw in draws:
            rewards = [0.0, float(draw.index % 3 > 0)]
            group = played(draw.task, rewards, tokens=3 + draw.index % 5)
            feed.settle(draw, group, replaced=draw.index % 4 == 0)
            feed.train([group], Batch(()))

    feed = make_feed(curriculum=curriculum)
    for _ in range(before):
        go_on(feed, [feed.draw()])
    in_progress = [feed.draw() for _ in range(held)]
    resumed = make_feed(curriculum=curriculum)
    resumed.restore(json.loads(json.dumps(feed.state(again=in_progress))))
    assert [resumed.draw() for _ in range(held)] == in_progress
    for one in (feed, resumed):
        go_on(one, in_progress)
    for _ in range(20):
        draws = [feed.draw(), resumed.draw()]
        assert draws[0] == draws[1]
        go_on(feed, draws[:1])
        go_on(resumed, draws[1:])


def test_every_task_of_an_environment_is_drawn_once_per_epoch_in_another_order():
    feed = make_feed(sizes=(6,), weights=(1.0,))
    first, second = [feed.draw().task.id for _ in range(6)], [feed.draw().task.id for _ in range(6)]
    assert sorted(first) == sorted(second)
    assert first != second


def test_what_is_put_back_comes_first_and_survives_a_restore():
    feed = make_feed()
    draw = feed.draw()
    feed.draw()
    feed.put_back(draw)
    resumed = make_feed()
    resumed.restore(json.loads(json.dumps(feed.state())))
    assert resumed.draw() == draw


def test_draws_are_the_same_under_another_hash_seed():
    draws = "[(d.task.id, d.seed) for d in (f.draw() for _ in range(9))]"
    code = f"from tests.pipeline.test_feed import make_feed; f = make_feed(3); print({draws})"
    run = [
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        )
        for seed in ("1", "2")
    ]
    assert run[0].stdout == run[1].stdout != ""


def test_an_environment_without_tasks_is_refused_by_name():
    with pytest.raises(ConfigError, match="'empty' has no tasks"):
        Feed({"empty": []}, weights={"empty": 1.0}, seed=0)


def test_a_checkpoint_of_other_environments_is_refused():
    with pytest.raises(ConfigError, match="resume with the same environments"):
        make_feed().restore(make_feed(sizes=(5,), weights=(1.0,)).state())
