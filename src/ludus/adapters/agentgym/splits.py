"""Train and test ids of each family. Promise: no id is in both.

AgentGym's published lists are not shipped: their licence forbids commercial use, and those of
sciworld, maze and wordle overlap. A run file may name their files, in the form [{"item_id":
"textcraft_31"}, ...]. The defaults below are our own disjoint splits: compare with published
figures only on the published lists.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.errors import ConfigError

_LAST_NUMBER = re.compile(r"(\d+)$")


@dataclass(frozen=True, slots=True)
class Split:
    train: Sequence[int]
    test: Sequence[int]


def every(nth: int, total: int) -> Split:
    """Every nth id is test, which suits ids sorted by difficulty."""
    return Split(train=tuple(i for i in range(total) if i % nth != nth - 1), test=tuple(range(nth - 1, total, nth)))


def spread(start: int, stop: int, *, num: int) -> tuple[int, ...]:
    """`num` ids spread evenly over start..stop-1."""
    return tuple(start + (stop - start) * i // num for i in range(num))


VARIATIONS = (
    30, 30, 30, 30, 540, 436, 300, 20, 20, 900, 600, 300, 300, 300, 300, 32, 36, 36, 125, 125, 125, 14, 10,
)  # fmt: skip
"""SciWorld: variations of the server's 23 tasks in its order (1-1 .. 4-4, 6-1 .. 8-2)."""


def _sciworld() -> Split:
    """ScienceWorld's rule: of each task, the first half is train, the last quarter test."""
    train, test, first = list[int](), list[int](), 0
    for num in VARIATIONS:
        train += range(first, first + num // 2)
        test += range(first + num * 3 // 4, first + num)
        first += num
    return Split(tuple(train), tuple(test))


_SEARCHQA_TEST = (  # id ranges of the seven question sets, and their shares of the test list
    (0, 3610, 50), (3610, 14923, 50), (14923, 29190, 50), (29190, 36595, 50), (36595, 49171, 50), (49171, 51588, 100), (51588, 51713, 50),
)  # fmt: skip

SPLITS: dict[str, Split] = {
    "textcraft": every(5, 544),  # goals sorted by depth, index modulo 544
    "babyai": Split(range(800), range(800, 920)),  # id = 40 * seed + level: 20 seeds, 3 others
    "sciworld": _sciworld(),
    "alfworld": Split(range(2420), range(2420, 2620)),
    "webshop": Split(range(200, 4130), range(200)),
    "searchqa": Split(
        range(51713, 221328), tuple(i for start, stop, num in _SEARCHQA_TEST for i in spread(start, stop, num=num))
    ),
    "sqlgym": Split(range(9428), range(9428, 10962)),  # BIRD train, BIRD dev
    "webarena": Split((), ()),  # the user chooses: some tasks change the sites for all others
    "maze": every(5, 25),  # start cells; the 26th is the goal itself
    "wordle": Split(range(955), range(955, 1055)),  # seeds of only 40 secret words
    "weather": every(10, 343),
    "movie": every(10, 238),
    "todo": every(10, 155),
    "academia": Split((), range(20)),  # 20 questions each, for evaluation only
    "sheet": Split((), range(20)),
}


def choose(family: str, *, train: str | Sequence[int], test: str | Sequence[int]) -> Split:
    """The ids of the options, or the family's own split."""
    own = SPLITS[family]
    split = Split(
        train=read_ids(train, what="train") if train else own.train,
        test=read_ids(test, what="test") if test else own.test,
    )
    shared = set(split.train) & set(split.test)
    if shared:
        raise ConfigError(
            f"{family}: {len(shared)} of {len(split.test)} test ids are train ids too, e.g. {min(shared)}; "
            "remove them from one of the two"
        )
    if not split.train and not split.test:
        raise ConfigError(
            f'{family} has no default ids; set options train and test, e.g. train = "0-99" or a .json file of item ids'
        )
    return split


def read_ids(given: str | Sequence[int], *, what: str) -> tuple[int, ...]:
    """A list, ranges such as "0-373,400", or a .json file of AgentGym's rows."""
    if not isinstance(given, str):
        ids = tuple(given)
    elif given.endswith(".json"):
        ids = _from_file(Path(given), what=what)
    else:
        ids = tuple(i for part in given.split(",") for i in _from_range(part.strip(), what=what))
    if any(i < 0 for i in ids):
        raise ConfigError(f"option {what}: id {min(ids)} is negative")
    return tuple(dict.fromkeys(ids))  # published lists name some ids twice


def _from_range(part: str, *, what: str) -> Iterable[int]:
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
    if not match:
        raise ConfigError(f'option {what}: {part!r} is neither an id nor a range; expected "0-373,400" or a .json file')
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise ConfigError(f"option {what}: range {part!r} ends before it begins")
    return range(first, last + 1)


def _from_file(path: Path, *, what: str) -> tuple[int, ...]:
    try:
        rows: Any = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"option {what}: {path} cannot be read: {error}") from None
    if not isinstance(rows, list):
        raise ConfigError(f'option {what}: {path} holds {type(rows).__name__}; expected a list of {{"item_id": ...}}')
    items = [row.get("item_id") if isinstance(row, dict) else row for row in rows]
    numbers = [_LAST_NUMBER.search(str(item)) for item in items]
    if None in numbers:
        row = numbers.index(None)
        raise ConfigError(
            f"option {what}: {path} row {row}: item_id {items[row]!r:.60} does not end in a number; "
            "expected e.g. textcraft_31"
        )
    return tuple(int(number[1]) for number in numbers if number)
