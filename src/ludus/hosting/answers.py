"""Checks of answers. Promise: an observation that passes can be stored, sent and scored."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, get_args

from ludus.types import Action, Message, Observation, Role, Task, Tool

_ROLES = frozenset(get_args(Role))


class BadAnswer(ValueError):
    """Says what was answered and what was expected."""


def checked_observation(answer: Any) -> Observation:
    if not isinstance(answer, Observation):
        raise BadAnswer(f"answered {type(answer).__name__}; expected an Observation")
    if not isinstance(answer.messages, tuple | list):
        raise BadAnswer(f"messages are {type(answer.messages).__name__}; expected a tuple of Message")
    for message in answer.messages:
        _check_message(message)
    for tool in answer.tools or ():
        _check_tool(tool)
    plain = type(answer.reward) is float and type(answer.done) is bool and not answer.metrics
    if plain and math.isfinite(answer.reward):
        return answer
    metrics = {str(name): _number(value, what=f"metric {name}") for name, value in answer.metrics.items()}
    reward = _number(answer.reward, what="reward")
    return dataclasses.replace(
        answer, reward=reward, done=bool(answer.done), invalid=bool(answer.invalid), metrics=metrics
    )


def checked_action(answer: Any) -> Action:
    if not isinstance(answer, Action):
        raise BadAnswer(f"answered {type(answer).__name__}; expected an Action")
    return answer


def checked_tasks(answer: Any) -> list[Task]:
    if not isinstance(answer, list | tuple) or not all(isinstance(task, Task) for task in answer):
        raise BadAnswer(f"answered {type(answer).__name__}; expected a list of Task")
    return list(answer)


def serialisable(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _number(value: Any, *, what: str) -> float:
    if not isinstance(value, Real):
        raise BadAnswer(f"{what} is {value!r:.60} ({type(value).__name__}); expected a finite number")
    if not math.isfinite(value):
        raise BadAnswer(f"{what} is {value}; expected a finite number")
    return float(value)


def _check_message(message: Any) -> None:
    if not isinstance(message, Message):
        raise BadAnswer(f"a message is {type(message).__name__}; expected Message(role, content)")
    if message.role not in _ROLES:
        raise BadAnswer(f"a message's role is {message.role!r:.40}; expected one of {', '.join(sorted(_ROLES))}")
    if not isinstance(message.content, str):
        raise BadAnswer(f"a message's content is {type(message.content).__name__}; expected a str")
    if not message.content.isascii():
        try:
            message.content.encode()
        except UnicodeEncodeError:
            problem = "a message's content is not valid Unicode (a lone surrogate); decode with errors='replace'"
            raise BadAnswer(problem) from None
    if message.tool_calls and not all(serialisable(dict(call.arguments)) for call in message.tool_calls):
        raise BadAnswer("a message's tool call has arguments that are not JSON")


def _check_tool(tool: Any) -> None:
    if not isinstance(tool, Tool):
        raise BadAnswer(f"a tool is {type(tool).__name__}; expected Tool(name, description, parameters)")
    if not isinstance(tool.parameters, Mapping) or not serialisable(dict(tool.parameters)):
        raise BadAnswer(f"tool {tool.name!r}: parameters are not a JSON schema")
