"""Rewards that an algorithm changes: only where it is asked to, and only for its own comparison."""

from dataclasses import replace

import pytest

from ludus.algorithms import make_algorithm
from ludus.algorithms.shaping import overlong_penalty
from ludus.config import AlgorithmConfig, load_config
from ludus.errors import ConfigError
from ludus.types import Observation, Stop
from tests.algorithms.examples import group_of, make_conversation, make_group


def shaped(group, *, config):
    return make_algorithm(config).shaped(group)


def rewards(group):
    return [[turn.observation.reward for turn in t.turns] for t in group.trajectories]


def test_without_a_wish_the_group_is_the_same_object():
    group = make_group([0.0, 1.0])
    assert shaped(group, config=AlgorithmConfig()) is group


@pytest.mark.parametrize("stop", [Stop.MAX_TURNS, Stop.MAX_TOKENS, Stop.MAX_TURN_TOKENS, Stop.INVALID])
def test_an_unfinished_session_gets_the_configured_reward_whatever_it_earned(stop):
    done = make_conversation([[1], [2]], [0.3, 0.0])
    cut = replace(make_conversation([[1], [2]], [0.3, 0.4]), stop=stop)
    group = group_of([done, cut])
    changed = shaped(group, config=AlgorithmConfig(unfinished_reward=-0.2))
    assert rewards(changed) == [[0.3, 0.0], [0.0, -0.2]]
    assert rewards(group) == [[0.3, 0.0], [0.3, 0.4]], "what is recorded stays"


def test_a_session_that_was_cut_before_its_first_turn_gets_it_too():
    silent = replace(make_conversation([[1]], [0.0]), turns=(), start=Observation(reward=0.5), stop=Stop.MAX_TOKENS)
    (only,) = shaped(group_of([silent]), config=AlgorithmConfig(unfinished_reward=-0.2)).trajectories
    assert only.reward == -0.2


def test_the_advantage_is_of_the_shaped_reward():
    talks = [replace(make_conversation([[1]], [0.0]), stop=stop) for stop in (Stop.DONE, Stop.MAX_TURNS)]
    plain = make_algorithm(AlgorithmConfig()).batch([group_of(talks)])
    pushed = make_algorithm(AlgorithmConfig(unfinished_reward=-0.2)).batch([group_of(talks)])
    assert plain.sequences == (), "equal rewards teach nothing"
    assert [float(s.advantages[s.sampled][0]) for s in pushed.sequences] == [1.0, -1.0]


def test_the_penalty_grows_from_0_to_minus_1_between_the_two_lengths():
    lengths = (0, 100, 150, 200, 1000)
    assert [overlong_penalty(n, start=100, end=200) for n in lengths] == pytest.approx([0, 0, -0.5, -1, -1])


def test_an_overlong_session_loses_reward_on_its_last_turn():
    long = make_conversation([[1, 2], [3, 4]], [0.5, 1.0])
    changed = shaped(group_of([long]), config=AlgorithmConfig(overlong=(2, 6)))
    assert rewards(changed) == [[0.5, 0.5]]


def test_lengths_that_do_not_grow_are_refused():
    with pytest.raises(ConfigError, match="the first below the second"):
        load_config(None, ["algorithm.overlong=[10, 10]"])
