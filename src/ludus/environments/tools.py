"""`@tool`: a typed method as a function that a model may call, and random arguments for it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from ludus.environments.signature import Signature, description, read_signature
from ludus.types import Action, Tool, ToolCall

Method = TypeVar("Method", bound=Callable[..., Any])
_MARK = "__ludus_tool__"
_WORDS = ("a", "b", "x", "one", "two", "red", "blue", "word")


def tool(method: Method) -> Method:
    """Marks a method as a tool. Docstring lines such as `number: the guess` describe arguments."""
    setattr(method, _MARK, True)
    return method


@dataclass(frozen=True)
class ToolMethod:
    """A marked method: the tool that the model sees, and the reader of its arguments."""

    tool: Tool
    signature: Signature


@cache
def tools_of(author: type) -> Mapping[str, ToolMethod]:
    """The tools of a class in source order, base classes first."""
    found: dict[str, ToolMethod] = {}
    for base in reversed(author.__mro__):
        for name in vars(base):
            method = getattr(author, name, None)
            if getattr(method, _MARK, False) and callable(method):
                signature = read_signature(method, what=f"tool {name}")
                found[name] = ToolMethod(Tool(name, description(method), signature.schema), signature)
    return found


def random_call(tools: Sequence[Tool], rng: random.Random) -> Action:
    tool = rng.choice(tools)
    return Action(tool_calls=(ToolCall(tool.name, random_value(tool.parameters, rng)),))


def random_value(schema: Mapping[str, Any], rng: random.Random) -> Any:
    """A random value that fits a JSON schema as signature.py makes them."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return random_value(rng.choice(schema[union]), rng)
    draw = _DRAW.get(schema.get("type", "string"))
    return draw(schema, rng) if draw else None


def _integer(schema: Mapping[str, Any], rng: random.Random) -> int:
    low, high = _bounds(schema, span=9, nudge=1)
    return rng.randint(int(low), int(high))


def _number(schema: Mapping[str, Any], rng: random.Random) -> float:
    low, high = _bounds(schema, span=1.0, nudge=1e-6)
    return rng.uniform(low, high)


def _bounds(schema: Mapping[str, Any], *, span: float, nudge: float) -> tuple[float, float]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None and "exclusiveMinimum" in schema:
        low = schema["exclusiveMinimum"] + nudge
    if high is None and "exclusiveMaximum" in schema:
        high = schema["exclusiveMaximum"] - nudge
    if low is None:
        low = 0 if high is None else high - span
    return low, (low + span if high is None else high)


def _string(schema: Mapping[str, Any], rng: random.Random) -> str:
    return rng.choice(_WORDS).ljust(schema.get("minLength", 0), "a")[: schema.get("maxLength")]


def _array(schema: Mapping[str, Any], rng: random.Random) -> list[Any]:
    least = int(schema.get("minItems", 0))
    length = rng.randint(least, min(int(schema.get("maxItems", least + 3)), least + 3))
    return [random_value(schema.get("items", {}), rng) for _ in range(length)]


def _object(schema: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    properties, required = schema.get("properties", {}), schema.get("required", ())
    chosen = (name for name in properties if name in required or rng.random() < 0.5)
    drawn = {name: random_value(properties[name], rng) for name in chosen}
    values = schema.get("additionalProperties")
    if isinstance(values, Mapping):
        drawn |= {rng.choice(_WORDS): random_value(values, rng) for _ in range(rng.randint(0, 2))}
    return drawn


_DRAW: dict[str, Callable[[Mapping[str, Any], random.Random], Any]] = {
    "integer": _integer,
    "number": _number,
    "boolean": lambda _schema, rng: rng.random() < 0.5,
    "string": _string,
    "array": _array,
    "object": _object,
}
