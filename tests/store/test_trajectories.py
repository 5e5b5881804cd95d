import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ludus.errors import StoreFailed
from ludus.store.lines import encode_line
from ludus.store.trajectories import (
    StoredTrajectory,
    group_from_dict,
    group_to_dict,
    stored_from_dict,
    stored_to_dict,
    trajectory_from_dict,
    trajectory_to_dict,
)
from ludus.types import Group, Observation, Sequence, Stop, Tool, frozen_array
from tests.store.examples import make_trajectory

ARRAYS = ("ids", "sampled", "logprobs", "versions", "turns")


def through_json(value):
    return json.loads(encode_line(value))


def assert_same(left, right):
    plain = [field.name for field in dataclasses.fields(left) if field.name != "sequences"]
    assert all(getattr(left, name) == getattr(right, name) for name in plain)
    assert len(left.sequences) == len(right.sequences)
    for mine, theirs in zip(left.sequences, right.sequences, strict=True):
        for name in ARRAYS:
            a, b = getattr(mine, name), getattr(theirs, name)
            assert a.dtype == b.dtype
            assert a.tobytes() == b.tobytes()
            assert not b.flags.writeable


@st.composite
def sequences(draw):
    length = draw(st.integers(0, 40))
    mask = draw(arrays(np.bool_, length))
    logprobs = draw(arrays(np.float32, length, elements=st.floats(-100, 0, width=32)))
    versions = draw(arrays(np.int32, length, elements=st.integers(0, 2**31 - 1)))
    return Sequence(
        ids=frozen_array(draw(arrays(np.int32, length, elements=st.integers(0, 2**31 - 1))), np.int32),
        sampled=frozen_array(mask, np.bool_),
        logprobs=frozen_array(np.where(mask, logprobs, 0), np.float32),
        versions=frozen_array(np.where(mask, versions, -1), np.int32),
        turns=frozen_array(np.sort(draw(arrays(np.int32, length, elements=st.integers(0, 9)))), np.int32),
    )


def test_a_turns_role_and_parent_come_back_through_trajectory_and_group():
    """The seam for several agents in one session and for sessions that branch: a turn says who spoke, and after which turn."""
    plain = make_trajectory()
    asked, answered = plain.turns[0], plain.turns[-1]
    turns = (asked, dataclasses.replace(answered, role="critic", parent=0, policy="reference"))
    branched = dataclasses.replace(plain, turns=turns)
    group = Group("g", branched.task, (branched,))
    back = group_from_dict(through_json(group_to_dict(group))).trajectories[0]
    assert_same(back, branched)
    assert [(turn.role, turn.parent) for turn in back.turns] == [("agent", None), ("critic", 0)]


@given(st.lists(sequences(), max_size=3))
def test_token_arrays_come_back_bit_for_bit(rows):
    trajectory = dataclasses.replace(make_trajectory(), sequences=tuple(rows))
    assert_same(trajectory, trajectory_from_dict(through_json(trajectory_to_dict(trajectory))))


@given(text=st.text(), reward=st.floats(allow_nan=False, allow_infinity=False), stop=st.sampled_from(list(Stop)))
def test_texts_rewards_and_stops_come_back(text, reward, stop):
    trajectory = dataclasses.replace(make_trajectory(text, reward=reward, stop=stop), failure=text)
    assert_same(trajectory, trajectory_from_dict(through_json(trajectory_to_dict(trajectory))))


def test_no_tools_and_tools_unchanged_stay_different():
    for tools in (None, (), (Tool("t", "", {}),)):
        trajectory = dataclasses.replace(make_trajectory(), start=Observation(tools=tools))
        assert trajectory_from_dict(through_json(trajectory_to_dict(trajectory))).start.tools == tools


def test_a_reward_that_is_no_number_survives_the_file():
    trajectory = make_trajectory(reward=math.nan)
    assert math.isnan(trajectory_from_dict(through_json(trajectory_to_dict(trajectory))).reward)


def test_readers_find_reward_success_stop_and_environment_at_the_top():
    data = through_json(trajectory_to_dict(make_trajectory(reward=0.5)))
    assert (data["reward"], data["success"], data["stop"], data["environment"], data["num_turns"]) == (
        0.5, True, "done", "guess", 2,
    )  # fmt: skip


def test_advantages_are_not_stored():
    trajectory = make_trajectory()
    row = dataclasses.replace(trajectory.sequences[0], advantages=np.ones(8), weights=np.ones(8))
    back = trajectory_from_dict(through_json(trajectory_to_dict(dataclasses.replace(trajectory, sequences=(row,)))))
    assert back.sequences[0].advantages is None
    assert back.sequences[0].weights is None


def test_the_place_in_the_run_comes_back():
    stored = StoredTrajectory(make_trajectory(), step=4, group_id="g7", split="test")
    back = stored_from_dict(through_json(stored_to_dict(stored)))
    assert (back.step, back.group_id, back.split) == (4, "g7", "test")


def test_a_group_comes_back_with_its_failed_attempts():
    scored, failed = make_trajectory("a"), make_trajectory("b", stop=Stop.FAILED, failure="EnvironmentFailed: x")
    group = Group("g", scored.task, (scored,), born=5, failed=(failed,))
    back = group_from_dict(through_json(group_to_dict(group)))
    assert (back.id, back.task, back.born, back.oldest_version) == ("g", group.task, 5, 3)
    assert_same(back.trajectories[0], scored)
    assert_same(back.failed[0], failed)


def test_runs_keep_a_token_cheap():
    row = make_trajectory(num_turns=50).sequences[0]
    data = trajectory_to_dict(dataclasses.replace(make_trajectory(), turns=(), sequences=(row,)))["sequences"]
    assert len(encode_line({"sequences": data})) / len(row) < 14


@pytest.mark.parametrize("damage", [{"stop": "gone"}, {"sequences": [{"ids": [1]}]}, {"task": {"name": "x"}}])
def test_a_damaged_trajectory_is_named_with_the_next_move(damage):
    with pytest.raises(StoreFailed, match=r"'t0' cannot be read.*version"):
        trajectory_from_dict(trajectory_to_dict(make_trajectory()) | damage)
