"""What every adapter does with what comes from outside. Promise: text passes as it was said, as plain text, and can always be stored.

Control characters and chat markup are left alone: the chat layer tokenises what an environment says without special tokens.
"""

from __future__ import annotations

import importlib
import json
from typing import Any

from ludus.errors import ConfigError, EnvironmentFailed

MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""No honest observation is longer. A server that sends more is cut off before it fills our memory."""


def as_text(value: Any) -> str:
    """A str stays what it is, other JSON is written out. Lone surrogates, which no file and no socket takes, are replaced."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def read_json(body: bytes | str, *, where: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise EnvironmentFailed(f"{where} answered {body[:80]!r}; expected JSON ({type(error).__name__})") from None


def refuse_after_done(done: bool) -> None:
    if done:
        raise RuntimeError("act() after done: a session is single use, open a new one")


def imported(module: str, *, extra: str) -> Any:
    """A package that only this adapter needs."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{error}; this adapter needs it: pip install 'ludus[{extra}]'") from error
