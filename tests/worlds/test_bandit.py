import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.environments import make
from ludus.errors import ConfigError
from ludus.worlds.bandit import SIGNS, Bandit, means
from tests.worlds.playing import play, success, world

SHOWN = {"a": "leaf", "b": "boat", "c": "moon"}


def bandit(*, seed=0, **options):
    session = Bandit(**({"arms": 3} | options))
    session.setup({"signs": SHOWN}, random.Random(seed))
    return session


@given(low=st.floats(0, 0.4), high=st.floats(0.5, 1))
def test_an_arms_mean_follows_from_its_sign_alone(low, high):
    worth = [means({"a": sign}, low=low, high=high)["a"] for sign in SIGNS]
    assert worth[0] == low
    assert worth[-1] == pytest.approx(high)
    steps = [after - before for before, after in pairwise(worth)]
    assert steps == pytest.approx([(high - low) / 7] * 7)


def test_attempts_at_one_task_start_alike_and_differ_in_luck_alone():
    environment = world("bandit")
    sessions = [environment.open(environment.tasks("train")[0], seed=seed) for seed in range(40)]
    assert len({session.start().messages for session in sessions}) == 1
    seen = [session.act(session.solve()) for session in sessions]
    assert len({observation.metrics["expected"] for observation in seen}) == 1
    assert {observation.reward for observation in seen} == {0.0, 1.0}


@pytest.mark.parametrize("arm", ["a", "b", "c"])
def test_an_arm_pays_as_often_as_its_mean_says(arm):
    paid = sum(bandit(seed=seed).act(arm).reward for seed in range(4000)) / 4000
    assert paid == pytest.approx(means(SHOWN, low=0.1, high=0.9)[arm], abs=0.03)  # four standard errors


def test_the_best_arm_is_a_success_even_where_it_does_not_pay():
    unlucky = next(session for seed in range(100) if not (session := bandit(seed=seed)).act("b").reward)
    assert unlucky.pulled == 1
    assert bandit().act("b").metrics["success"] == 1
    assert bandit().act("c").metrics["success"] == 0
    assert success(world("bandit"), mistakes=0.0, count=50) == 1


def test_several_pulls_share_one_reward_and_the_last_one_decides():
    session = bandit(pulls=4, low=0.0, high=1.0)
    replies = [session.act(arm) for arm in "bbab"]
    assert [reply.reward for reply in replies] == [0.25, 0.25, 0.0, 0.25]
    assert [reply.done for reply in replies] == [False, False, False, True]
    assert [reply.metrics["success"] for reply in replies] == [1, 1, 0, 1]


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_without_hints_no_prompt_tells_the_arms_apart(data):
    environment = world("bandit", arms=3, pulls=3, hints=False)
    task = data.draw(st.sampled_from(environment.tasks("train")))
    assert play(environment, task=task, seed=0)[0].messages[-1].content == "a b c"


def test_every_arm_is_best_about_as_often():
    best = Counter(_best(task.data["signs"]) for task in world("bandit").tasks("train"))
    assert set(best) == set("abcde")
    assert min(best.values()) > 150


def _best(signs):
    return max(signs, key=lambda arm: SIGNS.index(signs[arm]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"low": 0.5, "high": 0.5}, "no arm would be best"),
        ({"hints": False}, "set pulls to 2 or more"),
        ({"arms": 9}, "arms"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        make("bandit", options=options)
