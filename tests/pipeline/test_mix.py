"""Shares of environments: by weight, by trained tokens, by success; groups that were replaced do not change them."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.pipeline.mix import MAX_REPLACED, Mix
from tests.pipeline.played import make_tasks, played

TASKS = {name: make_tasks(name, 1)[0] for name in ("a", "b", "c")}


def play(mix, draws, *, rewards=lambda name: [0.0, 1.0], tokens=lambda name: 10, replaced=lambda name: False):
    """Draws, settles and trains one at a time; returns the groups trained per environment."""
    trained = Counter()
    for _ in range(draws):
        name = mix.pick()
        group = played(TASKS[name], rewards(name), tokens=tokens(name))
        gone = replaced(name)
        mix.settle(group, replaced=gone)
        if not gone:
            mix.train([group])
            trained[name] += 1
    return trained


def test_by_tokens_an_environment_with_long_answers_is_drawn_less_often():
    lengths = {"a": 10, "b": 40}
    trained = play(Mix({"a": 1, "b": 1}, rule="tokens"), 500, tokens=lengths.get)
    assert trained["a"] * 10 == pytest.approx(trained["b"] * 40, rel=0.02)


def test_by_tokens_weights_still_count_and_groups_underway_are_foreseen():
    mix = Mix({"a": 3, "b": 1}, rule="tokens")
    play(mix, 200, tokens={"a": 10, "b": 40}.get)
    ahead = Counter(mix.pick() for _ in range(130))
    assert ahead["a"] == pytest.approx(120, abs=2), "3 : 1 in tokens is 12 : 1 in groups"


def test_by_success_what_is_solved_or_hopeless_is_drawn_less_often():
    outcomes = {"a": [1.0, 1.0], "b": [0.0, 1.0], "c": [0.0, 0.0]}
    trained = play(Mix(dict.fromkeys("abc", 1.0), rule="success"), 600, rewards=outcomes.get)
    assert trained["b"] > 3 * max(trained["a"], trained["c"])
    assert min(trained.values()) > 30, "but never forgotten"


def test_replaced_groups_leave_the_shares_of_what_is_trained_as_they_were():
    kept = Counter()

    def every_third(name):
        kept[name] += 1
        return name == "a" and kept[name] % 3 != 0

    trained = play(Mix({"a": 1, "b": 1}, rule="weights"), 400, replaced=every_third)
    assert abs(trained["a"] - trained["b"]) <= 1


def test_an_environment_without_any_gradient_does_not_hold_up_the_others():
    trained = play(Mix({"a": 1, "b": 1}, rule="weights"), 400, replaced=lambda name: name == "a")
    assert trained["b"] > (400 - MAX_REPLACED) / 3


@pytest.mark.parametrize("rule", ["weights", "tokens", "success"])
@given(cut=st.integers(0, 40), lengths=st.lists(st.integers(1, 50), min_size=3, max_size=3))
def test_a_mix_resumed_anywhere_goes_on_the_same(rule, cut, lengths):
    def make():
        return Mix({"a": 1.0, "b": 2.0, "c": 0.5}, rule=rule)

    def picks(mix, count):
        chosen = []
        for _ in range(count):
            chosen.append(mix.pick())
            group = played(TASKS[chosen[-1]], [0.0, 1.0], tokens=lengths["abc".index(chosen[-1])])
            mix.settle(group, replaced=len(chosen) % 4 == 0)
            mix.train([group])
        return chosen

    first, second, through = make(), make(), make()
    got = picks(first, cut - cut % 4)
    second.restore(json.loads(json.dumps(first.state())))
    assert got + picks(second, 40) == picks(through, cut - cut % 4 + 40)
