import dataclasses

import numpy as np
import pytest

from ludus.types import (
    Action,
    Batch,
    Group,
    Observation,
    Sequence,
    Stop,
    Task,
    Trajectory,
    Turn,
    frozen_array,
)

TASK = Task("guess/train/0", "guess", "train")


def make_sequence(*, sampled, versions, turns):
    mask = np.array(sampled, dtype=bool)
    return Sequence(
        ids=frozen_array(range(len(mask)), np.int32),
        sampled=frozen_array(mask, np.bool_),
        logprobs=frozen_array(np.zeros(len(mask)), np.float32),
        versions=frozen_array(np.where(mask, versions, -1), np.int32),
        turns=frozen_array(turns, np.int32),
    )


def play(*observations, stop=Stop.DONE, start=None, sequences=(), policy="current"):
    turns = tuple(Turn(i, Action(), seen, num_tokens=3, policy=policy) for i, seen in enumerate(observations))
    return Trajectory("t", TASK, 0, 0, start or Observation(), turns, tuple(sequences), stop)


def test_records_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TASK.id = "other"  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        frozen_array([1], np.int32)[0] = 2


def test_a_frozen_array_is_a_copy():
    original = np.array([1, 2], dtype=np.int32)
    frozen = frozen_array(original, np.int32)
    original[0] = 9
    assert frozen.tolist() == [1, 2]


def test_the_token_arrays_of_a_sequence_have_one_length():
    row = make_sequence(sampled=[0, 1], versions=[0, 1], turns=[0, 0])
    with pytest.raises(AssertionError, match="differ in length"):
        dataclasses.replace(row, ids=frozen_array([1], np.int32))


def test_rewards_of_the_start_and_of_every_turn_add_up():
    trajectory = play(Observation(reward=0.5), Observation(reward=-0.25), start=Observation(reward=1.0))
    assert trajectory.reward == 1.25


def test_the_last_word_on_a_metric_counts():
    trajectory = play(Observation(metrics={"a": 1, "b": 1}), Observation(metrics={"a": 2}))
    assert trajectory.metrics == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    ("observation", "stop", "success"),
    [
        (Observation(reward=1.0), Stop.DONE, True),
        (Observation(reward=0.9), Stop.DONE, False),
        (Observation(reward=0.1, metrics={"success": 1.0}), Stop.DONE, True),
        (Observation(reward=1.0, metrics={"success": 0.0}), Stop.DONE, False),
        (Observation(reward=1.0), Stop.FAILED, False),
        (Observation(reward=1.0), Stop.MAX_TURNS, True),
    ],
)
def test_success_is_the_environments_word_or_a_full_reward(observation, stop, success):
    assert play(observation, stop=stop).success is success


def test_a_session_that_the_world_ended_is_unscored():
    unscored = {stop for stop in Stop if not stop.scored}
    assert unscored == {Stop.TURN_TIMEOUT, Stop.SESSION_TIMEOUT, Stop.FAILED, Stop.CANCELLED}


def test_the_oldest_version_is_that_of_sampled_tokens_of_the_current_policy():
    row = make_sequence(sampled=[0, 1, 1, 0, 1], versions=[0, 5, 4, 0, 7], turns=[0, 0, 0, 1, 1])
    assert play(Observation(), Observation(), sequences=[row]).oldest_version == 4
    assert play(Observation(), Observation(), sequences=[row], policy="reference").oldest_version is None
    assert play(Observation()).oldest_version is None


def test_a_groups_staleness_counts_from_its_oldest_token_or_from_its_birth():
    rows = [make_sequence(sampled=[1], versions=[version], turns=[0]) for version in (6, 4)]
    played = tuple(play(Observation(), sequences=[row]) for row in rows)
    assert Group("g", TASK, played, born=3).staleness(7) == 3
    assert Group("g", TASK, (play(Observation()),), born=3).staleness(7) == 4


def test_every_sequence_after_the_first_is_a_fork():
    row = make_sequence(sampled=[1], versions=[0], turns=[0])
    assert [play(Observation(), sequences=[row] * n).num_forks for n in (0, 1, 3)] == [0, 0, 2]


def test_counts_of_tokens_and_invalid_turns():
    trajectory = play(Observation(invalid=True), Observation(), Observation(invalid=True))
    assert (trajectory.num_sampled, trajectory.num_invalid) == (9, 2)
    row = make_sequence(sampled=[0, 1, 1], versions=[0, 1, 1], turns=[0, 0, 0])
    assert (row.num_sampled, len(row), Batch((row, row)).num_tokens) == (2, 3, 6)
