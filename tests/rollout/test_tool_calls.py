from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.rollout.tool_calls import EXAMPLES, ToolFormat, detect, parse, write
from ludus.types import Action, ToolCall
from tests.rollout.families import LLAMA3, MISTRAL, QWEN, SMOLLM2, tokenizer_of

FORMATS: tuple[ToolFormat, ...] = ("hermes", "smollm2", "llama3", "json")
GUESS = ToolCall("guess", {"number": 5})
CALL = '{"name": "guess", "arguments": {"number": 5}}'

leaves = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
harmless = st.text(alphabet="abc xyz.,!?\n-0123456789é", max_size=30).map(str.strip)
tags = st.sampled_from(["</tool_call>", "<tool_call>", "</think>", "<|python_tag|>", "```", '{"name": 1'])
arguments = st.dictionaries(st.text(max_size=6), values | tags, max_size=3)
calls = st.builds(ToolCall, st.text(alphabet="abc_1", min_size=1, max_size=8), arguments, st.sampled_from(["", "c1"]))
actions = st.builds(Action, harmless, st.lists(calls, max_size=3).map(tuple))
scraps = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<|python_tag|>", "```json\n", "```", "{", "}", "[", "]", '"name"', ":", '"arguments"',
     '"parameters"', '"guess"', "NaN", "1e999", "\\", "</think>", ",", ";", " ", "[[[[" * 2000, "9" * 5000]
)  # fmt: skip


@pytest.mark.parametrize("format", FORMATS)
@given(action=actions, newlines=st.booleans())
def test_what_is_written_is_read_back(format: ToolFormat, action: Action, newlines: bool) -> None:
    assert parse(write(action, format=format, newlines=newlines), format=format) == action


@pytest.mark.parametrize("format", FORMATS)
@given(text=st.lists(scraps | st.text(max_size=6), max_size=12).map("".join))
def test_no_text_breaks_the_parser(format: ToolFormat, text: str) -> None:
    action = parse(text, format=format)
    assert not (action.problem and action.tool_calls)
    assert all(call.name and isinstance(call.arguments, dict) for call in action.tool_calls)


@pytest.mark.parametrize(
    ("format", "text", "action"),
    [
        ("hermes", f"<tool_call>{CALL}</tool_call>", Action("", (GUESS,))),
        ("hermes", f"I try.\n<tool_call>\n{CALL}\n</tool_call>\n", Action("I try.", (GUESS,))),
        ("hermes", f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", Action("", (GUESS, GUESS))),
        ("hermes", f"<tool_call>{CALL}", Action("", (GUESS,))),
        ("hermes", '<tool_call>{"name": "look"}</tool_call>', Action("", (ToolCall("look", {}),))),
        ("hermes", f"<think><tool_call>?</think><tool_call>{CALL}</tool_call>", Action("<think><tool_call>?</think>", (GUESS,))),
        ("hermes", "just words", Action("just words")),
        ("smollm2", f"<tool_call>[{CALL}, {CALL}]</tool_call>", Action("", (GUESS, GUESS))),
        ("llama3", '<|python_tag|>{"name": "guess", "parameters": {"number": 5}}', Action("", (GUESS,))),
        ("llama3", '{"name": "guess", "parameters": {"number": 5}}', Action("", (GUESS,))),
        ("llama3", f"{CALL}; {CALL}", Action("", (GUESS, GUESS))),
        ("json", f"So:\n```json\n{CALL}\n```\nDone.", Action("So:\n\nDone.", (GUESS,))),
        ("json", f"So {CALL} it is", Action("So  it is", (GUESS,))),
        ("json", f"[{CALL}, {CALL}]", Action("", (GUESS, GUESS))),
        ("json", '{"function": {"name": "guess", "arguments": "{\\"number\\": 5}"}}', Action("", (GUESS,))),
        ("json", "a set {1, 2} and a list [3]", Action("a set {1, 2} and a list [3]")),
    ],
)  # fmt: skip
def test_calls_as_models_write_them(format: ToolFormat, text: str, action: Action) -> None:
    assert parse(text, format=format) == action


@pytest.mark.parametrize(
    ("format", "text", "reason"),
    [
        ("hermes", '<tool_call>{"name": "guess", "arguments": {"number": 5}</tool_call>', "JSON is broken"),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>', '"name" is missing'),
        ("hermes", '<tool_call>{"name": 7}</tool_call>', '"name" must be a string'),
        ("hermes", '<tool_call>{"name": "guess", "arguments": 5}</tool_call>', '"arguments" must be an object'),
        ("hermes", '<tool_call>{"name": "guess", "arguments": {"number": NaN}}</tool_call>', "JSON is broken"),
        ("hermes", "<tool_call></tool_call>", "it is empty"),
        ("hermes", "<tool_call>guess(5)</tool_call>", "JSON is broken"),
        ("hermes", f"<tool_call>{CALL} now</tool_call>", "text after the JSON"),
        ("hermes", f"<tool_call>[{CALL}]</tool_call>", "one JSON object between the tags, got a list"),
        ("hermes", "<tool_call>" + "[" * 100_000 + "</tool_call>", "could not be read"),
        ("smollm2", f"<tool_call>{CALL}</tool_call>", "must be a JSON list"),
        ("smollm2", "<tool_call>[]</tool_call>", "list of calls is empty"),
        ("json", '```json\n{"name": "guess", "arguments": {\n```', "JSON is broken"),
        ("llama3", '<|python_tag|>guess.call(number="5")', "JSON is broken"),
    ],
)
def test_a_broken_call_is_explained(format: ToolFormat, text: str, reason: str) -> None:
    action = parse(text, format=format)
    assert reason in action.problem
    assert EXAMPLES[format] in action.problem
    assert len(action.problem) < 300
    assert action.tool_calls == ()


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("hermes", f"```json\n{CALL}\n```"),
        ("hermes", CALL),
        ("hermes", f"<|python_tag|>{CALL}"),
        ("smollm2", CALL),
        ("hermes", f"{CALL}</tool_call>"),
    ],
)
def test_a_call_in_another_formats_wrapping_is_a_near_miss(format: ToolFormat, text: str) -> None:
    action = parse(text, format=format)
    assert "looks like a tool call" in action.problem
    assert action.tool_calls == ()


def test_the_format_is_read_off_the_template() -> None:
    assert detect(QWEN) == "hermes"
    assert detect(tokenizer_of("tiny").chat_template) == "hermes"
    assert detect(LLAMA3) == "llama3"
    assert detect(SMOLLM2) == detect(MISTRAL) == "json"
