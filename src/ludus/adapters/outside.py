"""Shared by all adapters. Promise: text from outside is passed on unchanged.

Control characters and chat markup stay: the chat layer makes no special tokens of them.
"""

from __future__ import annotations

import importlib
import json
from typing import Any

from ludus.environments.environment import Environment
from ludus.errors import ConfigError, EnvironmentFailed
from ludus.types import Message, Observation, Task, Tool, ToolCall

MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""A server that sends a longer answer is cut off, so that it cannot fill our memory."""
FIRST_TEST_SEED = 1_000_000
"""Far from the train seeds, and independent of their number."""


def as_text(value: Any) -> str:
    """A str unchanged, other values as JSON, numpy's too. Lone surrogates are replaced."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_plain)
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def seed_tasks(environment: Environment, split: str) -> list[Task]:
    """One task per seed: options `num_train` and `num_test` of them."""
    first, num = {"train": (0, "num_train"), "test": (FIRST_TEST_SEED, "num_test")}.get(split, (0, ""))
    seeds, name = range(first, first + int(environment.options.get(num, 0))), environment.name
    return [Task(f"{name}/{split}/{seed}", name, split, {"seed": seed}) for seed in seeds]


def opening(system: str, text: str, *, tools: tuple[Tool, ...] = (), **more: Any) -> Observation:
    """The first observation: a system message, if there is one, and the first user message."""
    first = (Message("system", system),) if system else ()
    return Observation(messages=(*first, Message("user", text)), tools=tools, **more)


def reply_to(call: ToolCall | None, text: str) -> Message:
    return Message("user", text) if call is None else Message("tool", text, tool_call_id=call.id, name=call.name)


def read_json(body: bytes | str, *, where: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise EnvironmentFailed(f"{where} answered {body[:80]!r}; expected JSON ({type(error).__name__})") from None


def imported(module: str, *, extra: str) -> Any:
    """A package that only one adapter needs."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{error}; this adapter needs it: pip install 'ludus[{extra}]'") from error
