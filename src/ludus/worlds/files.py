"""Files that options name, and our own. Promise: an error names option, file and line."""

from __future__ import annotations

import json
import os
import threading
import tomllib
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from ludus.errors import ConfigError, border

T = TypeVar("T")


@cache
def own_data(name: str) -> dict[str, Any]:
    """A TOML file of this package, such as `words.toml`."""
    return tomllib.loads(files(__package__).joinpath(name).read_text(encoding="utf-8"))


def word_lists(world: str) -> dict[str, list[str]]:
    return {name: text.split() for name, text in own_data("words.toml")[world].items()}


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


def write_whole(file: Path, data: bytes) -> None:
    """Readers in other processes see the old file or all of the new one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    half = file.with_name(f"{file.name}.{os.getpid()}.{threading.get_ident()}")
    half.write_bytes(data)
    half.replace(file)
