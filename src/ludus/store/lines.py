"""JSON lines on disk. Promise: every written line survives `kill -9` and a full disk, and a torn
line never hides another.

`append` hands a line to the kernel in one unbuffered write. Files are always valid JSON: NaN and
infinities are written as the strings "NaN", "Infinity" and "-Infinity"; `number` reads them back.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from ludus.errors import StoreFailed, describe


class LineFile:
    """An append-only file of JSON lines with a single writer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with naming_failure("open", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            size = os.fstat(self._fd).st_size
            if size and os.pread(self._fd, 1, size - 1) != b"\n":  # a killed process left half a line
                _write_all(self._fd, b"\n")

    def append(self, value: Mapping[str, Any]) -> int:
        """Writes one line; returns the size of the file in bytes."""
        data = encode_line(value)
        with naming_failure("append to", self.path):
            before = os.fstat(self._fd).st_size
            try:
                _write_all(self._fd, data)
            except OSError:
                with suppress(OSError):  # if this fails too, the next open ends the half line
                    os.ftruncate(self._fd, before)
                raise
            return before + len(data)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_lines(path: Path, *, report: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Yields the objects of a file, if it exists; reports unreadable lines as file:line."""
    if not path.exists():
        return
    with naming_failure("read", path), path.open("rb") as file:
        for row, line in enumerate(file, start=1):
            try:
                value = json.loads(line)
            except ValueError:  # also a UnicodeDecodeError
                why = "not valid JSON" if line.endswith(b"\n") else "torn: its writer ended while writing it"
                report(f"{path}:{row}: {len(line)} bytes, {why}; skipped")
                continue
            if isinstance(value, dict):
                yield value
            else:
                report(f"{path}:{row}: expected a JSON object, got {type(value).__name__}; skipped")


def number(value: Any) -> float:
    """A stored number as a float; NaN if it is missing or not a number."""
    try:
        return math.nan if value is None else float(value)
    except (TypeError, ValueError):
        return math.nan


def encode_line(value: Mapping[str, Any]) -> bytes:
    try:
        text = _dumps(value, ensure_ascii=False)
    except ValueError:  # NaN or an infinity somewhere
        value = _without_nan(value)
        text = _dumps(value, ensure_ascii=False)
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:  # a model can sample half a surrogate pair, which needs an escape
        return _dumps(value, ensure_ascii=True).encode() + b"\n"


@contextmanager
def naming_failure(verb: str, path: Path) -> Iterator[None]:
    """Turns an OSError into a StoreFailed that names the file and the next move."""
    try:
        yield
    except OSError as error:
        move = "Make it readable, then start the command again." if verb == "read" else _WRITABLE
        raise StoreFailed(f"cannot {verb} {path}: {describe(error)}. {move}") from error


_WRITABLE = (
    "Everything written before is intact. Free space or make the folder writable, then start the command again "
    "(`ludus train` with --resume if it has saved a checkpoint)."
)


def _dumps(value: Any, *, ensure_ascii: bool) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, allow_nan=False, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    """Converts what metrics and task data may hold beyond JSON; anything else becomes text."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    return str(value)


def _without_nan(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
