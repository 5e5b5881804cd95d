"""OpenAI's chat format: what is written is read back, and what cannot be read is named."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.errors import ConfigError
from ludus.openai_format import (
    action_to_openai,
    call_to_openai,
    message_to_openai,
    read_action,
    read_call,
    read_message,
    read_tool,
    tool_to_openai,
)
from ludus.types import Action, Message, Tool, ToolCall

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAME = st.text("abc_é", min_size=1, max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
CALLS = st.builds(ToolCall, NAME, st.dictionaries(TEXT, JSON, max_size=3), id=NAME)
TOOLS = st.builds(Tool, NAME, TEXT, st.fixed_dictionaries({"type": st.just("object"), "properties": st.just({})}))
SOME_CALLS = st.lists(CALLS, max_size=3).map(tuple)
MESSAGES = st.one_of(
    st.builds(Message, st.sampled_from(["system", "user"]), TEXT),
    st.builds(Message, st.just("assistant"), TEXT, tool_calls=SOME_CALLS),
    st.builds(Message, st.just("tool"), TEXT, tool_call_id=NAME),
)
ACTIONS = st.builds(Action, TEXT.map(str.strip), SOME_CALLS)


def through_json(value):
    return json.loads(json.dumps(value))


@given(TOOLS)
def test_a_tool_is_read_back_as_it_was_written(tool):
    assert read_tool(through_json(tool_to_openai(tool))) == tool


@given(CALLS)
def test_a_call_is_read_back_as_it_was_written(call):
    assert read_call(through_json(call_to_openai(call))) == call


@given(MESSAGES)
def test_a_message_is_read_back_as_it_was_written(message):
    assert read_message(through_json(message_to_openai(message))) == message


@given(ACTIONS)
def test_an_action_is_read_back_as_it_was_written(action):
    assert read_action(through_json(action_to_openai(action))) == action


def test_a_tool_is_written_in_openai_function_format():
    tool = Tool("guess", "Guess.", {"type": "object"})
    function = {"name": "guess", "description": "Guess.", "parameters": {"type": "object"}}
    assert tool_to_openai(tool) == {"type": "function", "function": function}


def test_calls_without_ids_get_one_each():
    calls = (ToolCall("a", {}), ToolCall("b", {}))
    assert [each["id"] for each in action_to_openai(Action("", calls))["tool_calls"]] == ["call_0", "call_1"]
    assert call_to_openai(calls[0], default_id="x")["id"] == "x"
    assert message_to_openai(Message("tool", "4"))["tool_call_id"] == "call_0"


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"role": "wizard", "content": "?"}, "wizard"),
        ({"role": "user", "content": 4}, "content 4"),
        ({"role": "user", "content": [{"type": "text", "text": "hi"}]}, "expected a role of system"),
        ({"role": "assistant", "tool_calls": 4}, "expected a list of tool calls"),
        ({"role": "assistant", "tool_calls": ["f"]}, "a tool call is 'f'; expected function.name"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}, "expected function.name"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{4"}}]},
            "arguments are no JSON",
        ),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[4]"}}]}, "arguments are list"),
    ],
)
def test_a_message_that_cannot_be_read_is_refused_with_the_part(raw, says):
    with pytest.raises(ConfigError, match=says.replace("[", r"\[")):
        read_message(raw)


@pytest.mark.parametrize("raw", [{}, "guess", {"function": {}}, {"function": {"name": 4}}, {"type": "function"}])
def test_a_tool_that_cannot_be_read_is_refused(raw):
    with pytest.raises(ConfigError, match="a tool is"):
        read_tool(raw)


def test_a_tool_without_parameters_takes_none():
    assert read_tool({"function": {"name": "look"}}) == Tool("look", "", {"type": "object", "properties": {}})


def test_a_conversation_with_calls_is_written_as_the_protocol_wants_it():
    call = Message("assistant", "", tool_calls=(ToolCall("guess", {"number": 4}, id="c1"),))
    written = message_to_openai(call)["tool_calls"][0]
    assert (written["id"], json.loads(written["function"]["arguments"])) == ("c1", {"number": 4})
    assert message_to_openai(Message("tool", "higher", tool_call_id="c1"))["tool_call_id"] == "c1"


@pytest.mark.parametrize(
    "raw", [{}, "guess", {"function": {"name": ""}}, {"function": {"name": "guess", "arguments": "{4"}},
            {"function": {"name": "guess", "arguments": "[4]"}}]
)  # fmt: skip
def test_a_call_that_cannot_be_read_is_a_problem_and_is_kept_as_text(raw):
    action = read_action({"content": "So:", "tool_calls": [raw]})
    assert action.problem
    assert action.tool_calls == ()
    assert json.dumps(raw, ensure_ascii=False) in action.content


def test_a_call_without_an_id_gets_one():
    raw = {"function": {"name": "guess", "arguments": {}}}
    assert [call.id for call in read_action({"tool_calls": [raw, raw]}).tool_calls] == ["call_0", "call_1"]
