import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.environments import make
from ludus.errors import ConfigError
from ludus.worlds.countdown import Countdown, evaluate, operations, shortest
from tests.worlds.playing import world


def countdown(numbers, target):
    session = Countdown(numbers=len(numbers))
    return session, session.setup({"numbers": numbers, "target": target}, random.Random(0))


def test_an_expression_may_be_said_at_once_or_step_by_step():
    at_once, first = countdown([2, 3, 8], 18)
    assert first == "2 3 8 make 18"
    end = at_once.act("3*(8-2)")
    assert (end.text, end.reward, end.done) == ("right", 1.0, True)
    in_steps, _ = countdown([2, 3, 8], 18)
    assert in_steps.act("8 - 2").text == "3 6 make 18"
    assert in_steps.act("3*6").reward == 1.0


def test_a_single_number_that_is_not_the_target_is_the_end():
    session, _ = countdown([2, 3], 6)
    end = session.act("2+3")
    assert (end.text, end.reward, end.done) == ("wrong", 0.0, True)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("18", "say an operation"),
        ("", "say an expression"),
        ("3*6=18", "say an expression"),
        ("__import__('os').system('true')", "say an expression"),
        ("9**9**9**9", "only + - * / and brackets"),
        ("8//2", "only + - * / and brackets"),
        ("3*-6", "only + - * / and brackets"),
        ("8(2)", "say an operation"),
        ("(8, 2)", "say an expression"),
        ("3*(8-2", "cannot be read"),
        ("08-2", "cannot be read"),
        ("(" * 79, "cannot be read"),
        ("1+" * 40 + "1", "say an expression"),
        ("8/3", "8/3 is no whole number above 0"),
        ("2-3", "2-3 is no whole number above 0"),
        ("3-3", "3-3 is no whole number above 0"),
        ("8/(3-2-1)", "1-1 is no whole number above 0"),
        ("8/0", "8/0 is no whole number above 0"),
        ("9*2", "no 9"),
        ("8*8", "too many 8"),
        ("True+8", "say an expression"),
        ("٣*٨", "say an expression"),
    ],
)
def test_what_is_no_sum_of_the_numbers_is_refused_and_changes_nothing(said, message):
    session, _ = countdown([2, 3, 8], 18)
    reply = session.act(said)
    assert (reply.invalid, reply.reward, reply.done) == (True, 0.0, False)
    assert reply.text == f"{message}. 2 3 8 make 18"


@given(st.text(alphabet="0123456789+-*/() .e_xTrue'\n\0", max_size=100))
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_or_refused(text):
    session, _ = countdown([2, 3, 8], 18)
    reply = session.act(text)
    assert reply.invalid or reply.done or reply.text.endswith("make 18")


@given(numbers=st.lists(st.integers(1, 30), min_size=2, max_size=4), data=st.data())
@settings(max_examples=100, deadline=None)
def test_every_operation_is_read_back_with_its_value_and_what_it_leaves(numbers, data):
    left = tuple(sorted(numbers))
    said, value, rest = data.draw(st.sampled_from(operations(left)))
    read, used = evaluate(said)
    assert read == value == eval(said)
    assert Counter(rest) == Counter(left) - used + Counter([value])


def test_every_task_can_be_solved_and_none_is_solved_at_the_start():
    for split in ("train", "test"):
        for task in world("countdown").tasks(split):
            numbers, target = tuple(task.data["numbers"]), task.data["target"]
            assert numbers == tuple(sorted(numbers))  # the same numbers in another order would be the same task twice
            assert target not in numbers
            assert 1 <= target <= 50
            assert 1 <= len(shortest(numbers, target)) <= 2


def test_the_solver_takes_the_shortest_way_and_says_where_there_is_none():
    assert shortest((2, 3, 8), 10) == ("8+2",)
    assert shortest((1, 1), 7) is None
    assert countdown([1, 1], 7)[0].solve() in ("1+1", "1*1", "1/1")


@pytest.mark.parametrize(("options", "message"), [({"max_turns": 1}, "2 operations"), ({"numbers": 6}, "numbers")])
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        make("countdown", options=options)
