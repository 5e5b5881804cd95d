"""Grading. Promise: answers are compared as text and numbers, never evaluated.

The rules are DBBench's: per cent signs and thousands commas do not count, every way to say nothing
is "0", numbers are equal within a hundredth, and other answers are compared as a set. Writes are
graded by what the tables hold afterwards.
"""

from __future__ import annotations

import ast
import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any

_NOTHING = {"", "none", "null", "nan", "inf", "-inf"}
_TOLERANCE = 1e-2
_MAX_LITERAL_CHARS = 10_000


def same_answers(given: Sequence[str], label: Sequence[str]) -> bool:
    said, right = [normal(text) for text in unpacked(given)], [normal(text) for text in label]
    said_numbers, right_numbers = _numbers(said), _numbers(right)
    if said_numbers and right_numbers:
        return _covered(said_numbers, right_numbers) and _covered(right_numbers, said_numbers)
    return set(said) == set(right)


def unpacked(given: Sequence[str]) -> list[str]:
    """Reads a single answer that looks like a list as one: `["['a', 'b']"]` means a and b."""
    if len(given) != 1 or not given[0].strip().startswith(("[", "(")) or len(given[0]) > _MAX_LITERAL_CHARS:
        return list(given)
    try:
        value = ast.literal_eval(given[0].strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return list(given)
    return [str(item) for item in _flat(value)]


def normal(text: str) -> str:
    text = text.strip().removesuffix("%").strip()
    bare = text.replace(",", "")
    if _number(bare) is not None:
        text = bare
    return "0" if text.lower() in _NOTHING else text


def same_rows(found: Iterable[Sequence[Any]] | None, wanted: Iterable[Sequence[Any]]) -> bool:
    """Whether both hold the same rows equally often, in any order; 1 and 1.0 are equal."""
    return found is not None and _sorted(found) == _sorted(wanted)


def table_hash(rows: Iterable[Sequence[Any]]) -> str:
    """DBBench's hash: five digits of each row's MD5, sorted, joined, and hashed again.

    NULLs are skipped, as MySQL's concat_ws does."""
    digests = sorted(_md5(",".join(str(cell) for cell in row if cell is not None))[:5] for row in rows)
    return _md5(",".join(digests))


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _numbers(texts: Sequence[str]) -> list[float]:
    """The texts as numbers; empty unless every one is a number."""
    numbers = [number for text in texts if (number := _number(text)) is not None]
    return numbers if len(numbers) == len(texts) else []


def _covered(numbers: Sequence[float], by: Sequence[float]) -> bool:
    return all(any(abs(number - other) <= _TOLERANCE for other in by) for number in numbers)


def _flat(value: Any) -> list[Any]:
    return [item for part in value for item in _flat(part)] if isinstance(value, list | tuple | set) else [value]


def _sorted(rows: Iterable[Sequence[Any]]) -> list[tuple[str, ...]]:
    return sorted(tuple(_cell(cell) for cell in row) for row in rows)


def _cell(value: Any) -> str:
    if isinstance(value, str) or value is None:
        return repr(value)
    return f"{float(value):.6f}"
