import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.environments import tool
from ludus.environments.signature import BadArguments
from ludus.environments.tools import random_value, tools_of
from ludus.errors import ConfigError
from ludus.openai_format import tool_to_openai
from tests.environments.authored import Adder, AsyncAdder, Typed

MIX = {"number": 1, "share": 2, "mode": "fast", "colour": "red", "names": ["x"], "table": {"a": 1}}


def test_a_typed_method_becomes_an_openai_function():
    answer = tool_to_openai(tools_of(Adder)["answer"].tool)
    assert answer == {
        "type": "function",
        "function": {
            "name": "answer",
            "description": "Give the sum.",
            "parameters": {"type": "object", "properties": {"value": {"type": "integer"}}, "required": ["value"]},
        },
    }


def test_defaults_and_descriptions_reach_the_schema():
    note = tools_of(Adder)["note"].tool
    assert note.description == "Write something down."
    assert note.parameters["required"] == ["text"]
    assert note.parameters["properties"]["text"] == {"type": "string", "description": "what to write"}
    assert note.parameters["properties"]["times"] == {"type": "integer", "default": 1}


def test_every_kind_of_argument_has_a_schema():
    properties = tools_of(Typed)["mix"].tool.parameters["properties"]
    assert properties["number"] == {"type": "integer", "description": "how many"}
    assert properties["share"] == {"type": "number", "description": "how much"}
    assert properties["mode"]["enum"] == ["fast", "slow"]
    assert properties["colour"]["enum"] == ["red", "blue"]
    assert properties["names"] == {"type": "array", "items": {"type": "string"}}
    assert properties["table"]["additionalProperties"] == {"type": "integer"}
    assert {part["type"] for part in properties["maybe"]["anyOf"]} == {"integer", "null"}
    assert "$ref" not in json.dumps(properties)


def test_tools_keep_the_order_in_which_they_are_written():
    assert list(tools_of(Typed)) == ["answer", "note", "mix"]


def test_an_overridden_tool_is_still_one_tool():
    assert list(tools_of(AsyncAdder)) == ["answer", "note"]


def test_arguments_arrive_as_python_values():
    arguments = tools_of(Typed)["mix"].signature.read_json(MIX)
    assert Typed().mix(**arguments) == "1 2.0 fast RED ['x'] {'a': 1} None True"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"number": "1"}, "number: got '1', expected a valid integer"),
        ({"number": True}, "number: got True, expected a valid integer"),
        ({"mode": "quick"}, "mode: got 'quick', expected 'fast' or 'slow'"),
        ({"names": [1]}, "names.0: got 1, expected a valid string"),
        ({"numer": 3}, "unknown argument numer; expected number, share"),
        ({"colour": "x" * 99}, "colour: got 'xxxxxxxxxxxxxxxxxxxx..., expected 'red' or 'blue'"),
        ({"share": {1, 2}}, "arguments are not JSON"),
    ],
)
def test_bad_arguments_are_explained_in_one_short_line(change, message):
    with pytest.raises(BadArguments) as caught:
        tools_of(Typed)["mix"].signature.read_json(MIX | change)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_missing_argument_is_named_with_its_type():
    with pytest.raises(BadArguments, match="value is missing; expected integer"):
        tools_of(Adder)["answer"].signature.read_json({})


def test_an_argument_without_a_type_is_refused_when_the_class_is_read():
    class Untyped:
        @tool
        def go(self, where):
            """Go."""

    with pytest.raises(ConfigError, match="parameter 'where' needs a name and a type"):
        tools_of(Untyped)


def test_an_argument_that_has_no_json_form_is_refused_when_the_class_is_read():
    class Odd:
        @tool
        def go(self, where: random.Random):
            """Go."""

    with pytest.raises(ConfigError, match="tool go: a type has no JSON form"):
        tools_of(Odd)


@given(seed=st.integers(0, 10_000))
def test_random_arguments_are_valid(seed):
    for method in tools_of(Typed).values():
        arguments = random_value(method.tool.parameters, random.Random(seed))
        assert method.signature.read_json(arguments).keys() >= arguments.keys()  # and read_json did not refuse them


@given(low=st.integers(-50, 50), span=st.integers(0, 50), seed=st.integers(0, 100))
def test_a_random_integer_keeps_to_its_bounds(low, span, seed):
    value = random_value({"type": "integer", "minimum": low, "maximum": low + span}, random.Random(seed))
    assert low <= value <= low + span
