"""Files that options name. Promise: an error names the option, the file and the line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ludus.errors import ConfigError, border

T = TypeVar("T")


def read_json(path: Path, *, option: str) -> Any:
    with border(ConfigError, f"{option}: {str(path)!r} cannot be read"):
        return json.loads(path.read_text(encoding="utf-8"))


def read_jsonl(path: Path, read: Callable[[int, Any], T], *, option: str, expected: str) -> list[T]:
    """`read(number, value)` of every line that is not blank. Lines are numbered from 1."""
    with border(ConfigError, f"{option}: {str(path)!r} cannot be read"):
        lines = path.read_text(encoding="utf-8").split("\n")
    found = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            with border(ConfigError, f"{option}: line {number} of {str(path)!r} is not {expected}"):
                found.append(read(number, json.loads(line)))
    return found
