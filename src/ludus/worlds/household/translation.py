"""A game as the planner's library wants it. Promise: translated once, and then read from a file; the same whatever the hash seed.

The library plays the game (what is possible, what it changes, whether it is won) and plans. It takes no PDDL but a list of operators, and
to make one takes a tenth of a second or more: longer than everything else at a session's start. Every process that opens the
task needs it, so it is kept in the state folder, some 15 kB a game.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import threading
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ludus.errors import EnvironmentFailed
from ludus.sandboxes.owner import state_folder

_TRANSLATING = threading.Lock()
"""The package's translator keeps its options in a module, and takes over sys.argv and sys.stdout meanwhile."""
_FORM = 1
"""Of the files. They are told apart by it: count it up when `translate` writes something else."""
_HELD = 128
"""Games in memory, a third of a megabyte each."""


@dataclass(frozen=True)
class Translation:
    sas: str
    """Every operator that any state allows, and the first state."""
    types: dict[str, str]
    """Of each thing."""
    above: dict[str, list[str]]
    """Of each type: those that it is also one of."""
    parameters: dict[str, list[list[str]]]
    """Of each action: names and types, in the order in which an operator names its things."""
    changing: list[str]
    """Predicates that some action changes; the others are true for ever, or never."""
    facts: list[list[str]]
    """True at first: a predicate, and what it is true of."""


@lru_cache(maxsize=_HELD)
def translated(domain: str, problem: str) -> Translation:
    return Translation(**_kept("game", domain, problem, make=lambda: asdict(translate(domain, problem))))


@lru_cache(maxsize=_HELD)
def for_planning(domain: str, problem: str) -> str:
    """Only what may lead to the goal: what the planner searches in."""
    found = _kept("plan", domain, problem, make=lambda: {"sas": _run(domain, problem, optimize=True)[1]})
    return str(found["sas"])


def translate(domain: str, problem: str) -> Translation:
    task, sas = _run(domain, problem, optimize=False)
    return Translation(
        sas=sas,
        types={thing.name: thing.type_name for thing in task.objects},
        above={kind.name: sorted(kind.supertype_names) for kind in task.types},
        parameters={
            action.name: [[each.name.strip("?"), each.type_name] for each in action.parameters]
            for action in task.actions
        },
        changing=sorted({effect.literal.predicate for action in task.actions for effect in action.effects}),
        facts=sorted([fact.predicate, *fact.args] for fact in task.init if getattr(fact, "predicate", "=") != "="),
    )


def _run(domain: str, problem: str, *, optimize: bool) -> tuple[Any, str]:
    with _TRANSLATING:
        arguments = sys.argv
        try:
            from fast_downward import pddl2sas

            task, sas = pddl2sas(domain, problem, optimize=optimize)
        except (Exception, SystemExit) as error:  # a damaged game: it raises what it likes, or ends the process
            raise EnvironmentFailed(f"the planner cannot read the game: {error!r}") from error
        finally:
            sys.argv = arguments
    return task, sas


def _kept(kind: str, *game: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `make` makes, from the file that it was written to before, if it is there and whole."""
    key = hashlib.sha256("\0".join([kind, str(_FORM), version("fast_downward_textworld"), *game]).encode()).hexdigest()[
        :32
    ]
    file = state_folder() / "household" / key
    try:
        found: dict[str, Any] = json.loads(zlib.decompress(file.read_bytes()))
    except (OSError, ValueError, zlib.error):  # not yet there, or damaged
        found = make()
        _write(file, zlib.compress(json.dumps(found).encode()))
    return found


def _write(file: Path, data: bytes) -> None:
    half = file.with_name(f"{file.name}.{os.getpid()}.{threading.get_ident()}")
    with contextlib.suppress(OSError):  # no room: the next process translates it again
        file.parent.mkdir(exist_ok=True)
        half.write_bytes(data)
        half.replace(file)
