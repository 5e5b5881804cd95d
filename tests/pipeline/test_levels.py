"""Prioritised level replay: chances that sum to 1, everything revisited, the same after a resume."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.config import CurriculumConfig
from ludus.pipeline.feed import Feed
from ludus.pipeline.levels import Level, Levels, positive_value_losses, replay_chances, score_of
from ludus.types import Batch, Group, ValueTargets
from tests.algorithms.examples import make_sequence, make_trajectory
from tests.pipeline.played import make_tasks, played

TASKS = make_tasks("maze", 12)


def make_levels(seed=0, tasks=TASKS, **knobs):
    return Levels(tasks, config=CurriculumConfig(tasks="replay", **knobs), seed=seed)


def chances(levels, *, now=100, temperature=1.0, staleness_share=0.1):
    return replay_chances(levels, now=now, temperature=temperature, staleness_share=staleness_share)


levels = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3),
    st.builds(Level, st.floats(0, 0.25), st.integers(0, 99)),
    min_size=1,
    max_size=8,
)


@given(levels, st.floats(0.05, 5), st.floats(0.01, 1))
def test_chances_sum_to_1_and_nobody_has_none(known, temperature, share):
    got = chances(known, temperature=temperature, staleness_share=share)
    assert sum(got.values()) == pytest.approx(1)
    assert got.keys() == known.keys()
    assert min(got.values()) > 0


def test_by_rank_a_better_score_is_likelier_and_the_scale_of_scores_does_not_matter():
    small = {"a": Level(0.01, 0), "b": Level(0.02, 0), "c": Level(0.0, 0)}
    large = {name: Level(100 * level.score, 0) for name, level in small.items()}
    got = chances(small, staleness_share=1e-9)
    assert got == chances(large, staleness_share=1e-9)
    assert [got[name] for name in "bac"] == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    assert chances(small, temperature=0.1, staleness_share=1e-9)["b"] > 0.99


def test_by_age_what_was_not_played_for_long_is_likelier():
    known = {"a": Level(0.1, 99), "b": Level(0.1, 70)}
    assert chances(known, staleness_share=1.0) == pytest.approx({"a": 1 / 31, "b": 30 / 31})
    just_played = {"a": Level(0.1, 100), "b": Level(0.1, 100)}
    assert sum(chances(just_played, staleness_share=1.0).values()) == pytest.approx(1)


def test_scores():
    task = TASKS[0]
    assert score_of(played(task, [0, 1, 1, 1]), kind="learnability") == 0.25 * 0.75
    assert (
        score_of(played(task, [1, 1]), kind="learnability") == score_of(played(task, [0, 0]), kind="learnability") == 0
    )
    assert score_of(played(task, [0.0, 3.0]), kind="advantage") == 1.5


def judged(task, surprises, *, name="g"):
    """A group of one trajectory per entry, and a batch in which the critic was off by so much at each of its tokens."""
    sequences = [make_sequence(range(1, 1 + len(own))) for own in surprises]
    group = Group(name, task, tuple(make_trajectory(f"{name}.{i}", sequences=[s]) for i, s in enumerate(sequences)))
    trained = []
    for sequence, own in zip(sequences, surprises, strict=True):
        values = np.where(sequence.sampled, 0.5, 0.0)
        returns = values.copy()
        returns[sequence.sampled] += own
        targets = ValueTargets(values, returns, sequence.sampled / 9)
        trained.append(replace(sequence, critic=targets))
    return group, Batch(tuple(trained))


def test_positive_value_loss_counts_what_went_better_than_expected_and_nothing_else():
    group, batch = judged(TASKS[0], [[0.5, -0.3], [0.0, 0.1, 0.4]])
    assert positive_value_losses([group], batch) == pytest.approx({"g": 1.0 / 5})
    assert positive_value_losses([group], Batch(())) == {}, "filtered out, it has none"


def test_by_positive_value_loss_a_task_keeps_its_score_until_it_is_trained_again():
    levels = make_levels(score="positive_value_loss")
    group, batch = judged(TASKS[0], [[0.5]])
    levels.learn(group, index=3)
    assert levels.state()["levels"] == {TASKS[0].id: [0.0, 3]}
    levels.train([group], batch)
    assert levels.state()["levels"] == {TASKS[0].id: [0.5, 3]}
    levels.learn(group, index=7)
    assert levels.state()["levels"] == {TASKS[0].id: [0.5, 7]}


def test_what_goes_better_than_expected_is_replayed_most_and_resumed_anywhere_the_same():
    def go(levels, *, begin, end):
        chosen = []
        for n in range(begin, end):
            task = levels.choose(count=n, index=n)
            group, batch = judged(task, [[0.9 if task.id.endswith("/3") else -0.9]], name=f"g{n}")
            levels.learn(group, index=n)
            levels.train([group], batch)
            chosen.append(task.id)
        return chosen

    through = go(make_levels(score="positive_value_loss"), begin=0, end=200)
    assert Counter(through).most_common(1)[0][0] == "maze/train/3"
    for cut in (1, 30, 199):
        first, second = (make_levels(score="positive_value_loss") for _ in range(2))
        got = go(first, begin=0, end=cut)
        second.restore(json.loads(json.dumps(first.state())))
        assert got + go(second, begin=cut, end=200) == through


def test_a_task_whose_groups_come_to_nothing_is_revisited_too():
    feed = Feed({"maze": TASKS}, weights={"maze": 1.0}, seed=0, curriculum=CurriculumConfig(tasks="replay"))
    counts = Counter()
    for _ in range(400):
        draw = feed.draw()
        counts[draw.task.id] += 1
        if draw.task.id == TASKS[5].id:
            feed.drop(draw)
        else:
            feed.settle(draw, played(draw.task, rewards_of(draw.task)))
    assert counts[TASKS[5].id] >= 5


def test_every_task_is_drawn_once_before_anything_is_known():
    fresh = make_levels()
    assert sorted(fresh.choose(count=n, index=n).id for n in range(12)) == sorted(task.id for task in TASKS)


def rewards_of(task):
    """Tasks 0 and 1 are at the edge of what can be done; the others are solved or hopeless."""
    number = int(task.id.rsplit("/")[-1])
    return [0.0, 1.0] if number < 2 else [float(number % 2)] * 2


def play(levels, *, begin, end):
    chosen = []
    for n in range(begin, end):
        task = levels.choose(count=n, index=n)
        levels.learn(played(task, rewards_of(task)), index=n)
        chosen.append(task.id)
    return chosen


def test_what_can_be_learnt_is_replayed_most_and_nothing_is_forgotten():
    counts = Counter(play(make_levels(), begin=0, end=600))
    assert min(counts.values()) >= 5
    assert len(counts) == 12
    assert counts["maze/train/0"] + counts["maze/train/1"] > 600 / 3 > 2 * 600 / 12


@given(st.integers(0, 40), st.integers(0, 5))
def test_replay_resumed_anywhere_goes_on_the_same(cut, seed):
    through, first, second = make_levels(seed), make_levels(seed), make_levels(seed)
    expected = play(through, begin=0, end=45)
    got = play(first, begin=0, end=cut)
    second.restore(json.loads(json.dumps(first.state())))
    assert got + play(second, begin=cut, end=45) == expected


def test_an_environment_with_a_single_task_draws_it_for_ever():
    single = make_levels(tasks=TASKS[:1])
    assert set(play(single, begin=0, end=9)) == {TASKS[0].id}
