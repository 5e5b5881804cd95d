"""Gymnasium spaces as text. Promise: a parsed action is in its space."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from ludus.adapters.outside import as_text
from ludus.errors import ConfigError

MAX_NUMBERS = 256
"""A Box with more numbers needs a rendering function."""


class NotInSpace(ValueError):
    """The message is for the model."""


class ActionText:
    """Text <-> action. Actions of a Discrete space have names; others are JSON."""

    def __init__(self, space: Any, *, names: Sequence[str] = ()) -> None:
        self.space = space
        self.names = tuple(names) or discrete_names(space)
        if names and len(names) != len(discrete_names(space)):
            expected = len(discrete_names(space)) or "none: the space is not Discrete"
            raise ConfigError(f"option actions gives {len(names)} names for {space}; expected {expected}")
        if len({name.strip().lower() for name in self.names}) < len(self.names):
            raise ConfigError(f"option actions gives a name twice: {', '.join(self.names)}")

    def read(self, text: str) -> Any:
        if self.names:
            return self._named(text)
        value: Any = text if type(self.space).__name__ == "Text" else _json(text, self.space)
        try:
            action = _into(self.space, value)
            fits = self.space.contains(action)
        except (TypeError, ValueError, KeyError, OverflowError):
            fits = False
        if not fits:
            raise NotInSpace(f"{text.strip()[:60]!r} does not fit {described(self.space)}")
        return action

    def write(self, action: Any) -> str:
        if self.names:
            return self.names[int(action) - int(self.space.start)]
        return as_text(action)

    def schema(self) -> dict[str, Any]:
        """JSON schema of the tool's only argument."""
        if self.names:
            return {"type": "string", "enum": list(self.names)}
        kind = {"Text": "string", "Box": "array", "MultiDiscrete": "array", "MultiBinary": "array", "Tuple": "array"}
        return {"type": kind.get(type(self.space).__name__, "object"), "description": described(self.space)}

    def _named(self, text: str) -> Any:
        said = text.strip().lower()
        for number, name in enumerate(self.names):
            if name.strip().lower() == said:
                return self.space.start + number
        raise NotInSpace(f"say one of: {', '.join(self.names)}")


def discrete_names(space: Any) -> tuple[str, ...]:
    if type(space).__name__ != "Discrete":
        return ()
    return tuple(str(number) for number in range(int(space.start), int(space.start) + int(space.n)))


def described(space: Any) -> str:
    kind = type(space).__name__
    if kind == "Discrete":
        return f"one of {', '.join(discrete_names(space))}"
    if kind == "Text":
        return f"a text of {space.min_length} to {space.max_length} characters"
    if kind == "Dict":
        return "a JSON object with " + ", ".join(f"{name}: {described(part)}" for name, part in space.spaces.items())
    if kind == "Tuple":
        return "a JSON list of " + ", ".join(described(part) for part in space.spaces)
    return f"JSON of the form {space}"


def rendered(space: Any, observation: Any) -> str:
    """An observation as text."""
    kind = type(space).__name__
    if kind == "Text":
        return as_text(observation)
    if kind == "Discrete":
        return f"state {int(observation)}"
    if kind == "Dict":
        return "\n".join(f"{name}: {rendered(part, observation[name])}" for name, part in space.spaces.items())
    if kind == "Tuple":
        return ", ".join(_bare(part, value) for part, value in zip(space.spaces, observation, strict=True))
    return _bare(space, observation)


def check_renderable(space: Any, *, where: str) -> None:
    """Refuses observations such as images, which are too long as numbers."""
    for part in _parts(space):
        size = math.prod(getattr(part, "shape", None) or ())
        if size > MAX_NUMBERS:
            raise ConfigError(
                f"an observation of {where} has {size} numbers; at most {MAX_NUMBERS} can be written as text. "
                'Set option render to "ansi" or to module:function(observation, env)'
            )


def _parts(space: Any) -> list[Any]:
    inner = getattr(space, "spaces", None)
    if inner is None:
        return [space]
    children = inner.values() if hasattr(inner, "values") else inner
    return [part for child in children for part in _parts(child)]


def _bare(space: Any, value: Any) -> str:
    return rendered(space, value) if hasattr(space, "spaces") else as_text(value)


def _json(text: str, space: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise NotInSpace(f"{text.strip()[:60]!r} is not JSON; expected {described(space)}") from None


def _into(space: Any, value: Any) -> Any:
    """A JSON value as the space represents it. Raises if it does not fit."""
    import numpy as np

    kind = type(space).__name__
    if kind == "Dict":
        if set(value) != set(space.spaces):
            raise KeyError("other keys")
        return {name: _into(part, value[name]) for name, part in space.spaces.items()}
    if kind == "Tuple":
        return tuple(_into(part, item) for part, item in zip(space.spaces, value, strict=True))
    if kind in ("Box", "MultiDiscrete", "MultiBinary"):
        return np.array(value, dtype=space.dtype)
    return value
