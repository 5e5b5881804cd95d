"""What is decoded equals what was encoded."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from array import array

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ludus.errors import ConfigError
from ludus.types import (
    Action,
    Completion,
    Message,
    Observation,
    Sampling,
    Sequence,
    Stop,
    Task,
    Tool,
    ToolCall,
    Trajectory,
    Turn,
    ValueTargets,
    frozen_array,
)
from ludus.wire.codec import Record, decode, encode

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.integers(-(2**53), 2**53)
JSON = st.recursive(
    st.none() | st.booleans() | COUNTS | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=3)
CALLS = st.lists(st.builds(ToolCall, TEXT, OBJECTS, TEXT), max_size=2).map(tuple)
ROLES = st.sampled_from(["system", "user", "assistant", "tool"])
MESSAGES = st.lists(st.builds(Message, ROLES, TEXT, CALLS, TEXT, TEXT), max_size=2).map(tuple)
TOOLS = st.none() | st.lists(st.builds(Tool, TEXT, TEXT, OBJECTS), max_size=2).map(tuple)
METRICS = st.dictionaries(TEXT, NUMBERS, max_size=2)
TASKS = st.builds(Task, TEXT, TEXT, TEXT, OBJECTS)
ACTIONS = st.builds(Action, TEXT, CALLS, TEXT)
OBSERVATIONS = st.builds(Observation, MESSAGES, TOOLS, NUMBERS, st.booleans(), st.booleans(), METRICS)
TURNS = st.builds(
    Turn, COUNTS, ACTIONS, OBSERVATIONS, TEXT, COUNTS, COUNTS, COUNTS, NUMBERS, NUMBERS, TEXT, st.none() | COUNTS
)


@st.composite
def sequences(draw):
    size = draw(st.integers(0, 6))
    floats = arrays.arrays(np.float32, size)  # NaN, infinities and -0.0 among them
    ints = arrays.arrays(np.int32, size)
    critic = st.builds(ValueTargets, floats, floats, floats)
    rows = [draw(each) for each in (ints, arrays.arrays(np.bool_, size), floats, ints, ints)]
    return Sequence(*rows, *(draw(st.none() | each) for each in (floats, floats, critic)))


TRAJECTORIES = st.builds(
    Trajectory,
    TEXT, TASKS, COUNTS, COUNTS, OBSERVATIONS, st.lists(TURNS, max_size=2).map(tuple),
    st.lists(sequences(), max_size=2).map(tuple), st.sampled_from(Stop), TEXT, COUNTS, NUMBERS,
)  # fmt: skip


def exact(value):
    """Plain data that is equal only where arrays have the same bits, type and shape, and floats the
    same bits."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if dataclasses.is_dataclass(value):
        return (type(value), *(exact(getattr(value, each.name)) for each in dataclasses.fields(value)))
    if isinstance(value, dict):
        return {key: exact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return (type(value), *map(exact, value))
    return value.hex() if isinstance(value, float) else value


def arrays_of(value):
    if isinstance(value, np.ndarray):
        yield value
    elif dataclasses.is_dataclass(value):
        for each in dataclasses.fields(value):
            yield from arrays_of(getattr(value, each.name))


@settings(max_examples=150, deadline=None)
@given(TRAJECTORIES)
def test_a_trajectory_comes_back_bit_for_bit_with_read_only_arrays(trajectory):
    back = decode(encode(trajectory), Trajectory)
    assert exact(back) == exact(trajectory)
    assert not any(each.flags.writeable for sequence in back.sequences for each in arrays_of(sequence))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(COUNTS, st.floats(), COUNTS), max_size=8), st.sampled_from(["end", "length"]), TEXT)
def test_a_completion_comes_back_also_with_logprobs_that_json_does_not_know(tokens, stop, policy):
    ids, logprobs, versions = tuple(zip(*tokens, strict=True)) or ((), (), ())
    back = decode(encode(Completion(ids, logprobs, versions, stop, policy)), Completion)
    assert (back.ids, back.versions, back.stop, back.policy) == (ids, versions, stop, policy)
    assert np.array(back.logprobs).tobytes() == np.array(logprobs).tobytes()
    assert {type(each) for each in back.ids} <= {int}
    assert {type(each) for each in back.logprobs} <= {float}


@given(st.builds(Sampling, COUNTS, NUMBERS, st.lists(COUNTS, max_size=3).map(tuple), COUNTS))
def test_sampling_comes_back(sampling):
    assert decode(encode(sampling), Sampling) == sampling


@pytest.mark.parametrize(
    "given_array",
    [
        frozen_array([math.nan, math.inf, -math.inf, -0.0], np.float64),
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=np.float16).reshape(2, 3)),
        np.array(7, np.int64),
        np.zeros((0, 3), np.uint8),
    ],
)
def test_an_array_keeps_its_values_shape_and_type(given_array):
    back = decode(encode(given_array), np.ndarray)
    assert (back.shape, back.dtype.kind, back.dtype.itemsize) == (
        given_array.shape,
        given_array.dtype.kind,
        given_array.dtype.itemsize,
    )
    np.testing.assert_array_equal(back, given_array)


class Prompt(Record, frozen=True):
    ids: array


class Both(Record, frozen=True):
    text: str
    numbers: np.ndarray


@pytest.mark.parametrize("typecode", "bBhHiIlLqQfd")
def test_an_array_of_numbers_in_a_record_comes_back(typecode):
    for numbers in ([], [1, 2, 100]):
        assert decode(encode(Prompt(array(typecode, numbers))), Prompt).ids == array(typecode, numbers)


def test_a_long_prompt_costs_far_less_as_an_array_than_as_a_list():
    ids = list(range(4000))
    prompt = Prompt(array("I", ids))

    def seconds(function):
        times = []
        for _ in range(50):
            began = time.perf_counter()
            function()
            times.append(time.perf_counter() - began)
        return min(times)

    packed = seconds(lambda: decode(encode(prompt), Prompt))
    assert packed < seconds(lambda: json.loads(json.dumps(ids))) / 3


def test_arrays_survive_beside_text_that_is_not_unicode():
    back = decode(encode(Both("half \ud83d", np.arange(3))), Both)
    assert back.text == "half ?"
    np.testing.assert_array_equal(back.numbers, np.arange(3))


@pytest.mark.parametrize("value", [object(), np.array([object()]), {"a": {1, object()}}])
def test_what_cannot_be_sent_is_refused(value):
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        encode(value)


@pytest.mark.parametrize(
    "body",
    [[], ["<f4", [2], "AAAA"], ["nonsense,,", [1], "AAAAAA=="], ["O", [1], "AAAAAAAAAAA="], ["<f4", [-1], 3], "x"],
)
def test_a_malformed_array_is_refused_by_name(body):
    with pytest.raises(ConfigError, match="not a valid Prompt: expected dtype, shape and base64"):
        decode(msgspec.json.encode({"ids": body}), Prompt)
