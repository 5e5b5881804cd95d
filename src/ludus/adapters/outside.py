"""Shared by all adapters. Promise: text from outside is passed on unchanged.

Control characters and chat markup stay: the chat layer makes no special tokens of them.
"""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Sequence
from typing import Any

from ludus.environments.environment import Environment
from ludus.environments.tools import random_value
from ludus.errors import ConfigError, EnvironmentFailed
from ludus.types import Action, Message, Observation, Task, Tool, ToolCall

MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""A server that sends a longer answer is cut off, so that it cannot fill our memory."""
FIRST_TEST_SEED = 1_000_000
"""Far from the train seeds, and independent of their number."""


def as_text(value: Any) -> str:
    """A str unchanged, other values as JSON. Lone surrogates are replaced."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def seed_tasks(environment: Environment, split: str) -> list[Task]:
    """One task per seed: options `num_train` and `num_test` of them."""
    first, num = {"train": (0, "num_train"), "test": (FIRST_TEST_SEED, "num_test")}.get(split, (0, ""))
    seeds, name = range(first, first + int(environment.options.get(num, 0))), environment.name
    return [Task(f"{name}/{split}/{seed}", name, split, {"seed": seed}) for seed in seeds]


def opening(system: str, text: str, *, tools: tuple[Tool, ...] = (), **more: Any) -> Observation:
    """The first observation: a system message, if there is one, and the first user message."""
    first = (Message("system", system),) if system else ()
    return Observation(messages=(*first, Message("user", text)), tools=tools, **more)


def refused(text: str) -> Observation:
    """An invalid action; `text` tells the model why."""
    return Observation(messages=(Message("user", text),), invalid=True)


def reply_to(call: ToolCall | None, text: str) -> Message:
    return Message("user", text) if call is None else Message("tool", text, tool_call_id=call.id, name=call.name)


def random_call(tools: Sequence[Tool], rng: random.Random) -> Action:
    tool = rng.choice(tools)
    return Action(tool_calls=(ToolCall(tool.name, random_value(tool.parameters, rng)),))


def read_json(body: bytes | str, *, where: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise EnvironmentFailed(f"{where} answered {body[:80]!r}; expected JSON ({type(error).__name__})") from None


def refuse_after_done(done: bool) -> None:
    if done:
        raise RuntimeError("act() after done: a session is single use, open a new one")


def imported(module: str, *, extra: str) -> Any:
    """A package that only one adapter needs."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{error}; this adapter needs it: pip install 'ludus[{extra}]'") from error
