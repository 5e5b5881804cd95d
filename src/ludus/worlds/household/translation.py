"""A game in the format of the planner's library: a list of operators instead of PDDL.

Promise: translated once and then read from a file; the same whatever the hash seed. Translating
takes a tenth of a second or more, longer than the rest of a session's start, in every process that
opens the task. So the result is kept in the state folder, some 15 kB a game.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import threading
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from ludus.errors import EnvironmentFailed
from ludus.sandboxes.owner import state_folder
from ludus.worlds.files import write_whole

_TRANSLATING = threading.Lock()
"""The translator has global options, and replaces sys.argv and sys.stdout while it runs."""
_FORM = 1
"""Version of the files' format: increase it when `translate` writes something else."""
_HELD = 128
"""Games in memory, a third of a megabyte each."""


@dataclass(frozen=True)
class Translation:
    """`sas` has the operators and the first state, `above` the supertypes of a type, `parameters`
    the names and types of an action's arguments, `changing` the predicates that some action
    changes, and `facts` what is true at first."""

    sas: str
    types: dict[str, str]
    above: dict[str, list[str]]
    parameters: dict[str, list[list[str]]]
    changing: list[str]
    facts: list[list[str]]


@lru_cache(maxsize=_HELD)
def translated(domain: str, problem: str) -> Translation:
    return Translation(**_kept("game", domain, problem, make=lambda: asdict(translate(domain, problem))))


@lru_cache(maxsize=_HELD)
def for_planning(domain: str, problem: str) -> str:
    """The operators that may lead to the goal, which the planner searches."""
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
        except (Exception, SystemExit) as error:  # a damaged game may raise anything, or end the process
            raise EnvironmentFailed(f"the planner cannot read the game: {error!r}") from error
        finally:
            sys.argv = arguments
    return task, sas


def _kept(kind: str, *game: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `make` makes, read from the file that an earlier call wrote, if it is intact."""
    parts = "\0".join([kind, str(_FORM), version("fast_downward_textworld"), *game])
    file = state_folder() / "household" / hashlib.sha256(parts.encode()).hexdigest()[:32]
    try:
        found: dict[str, Any] = json.loads(zlib.decompress(file.read_bytes()))
    except (OSError, ValueError, zlib.error):  # not yet there, or damaged
        found = make()
        with contextlib.suppress(OSError):  # disk full: the next process translates it again
            write_whole(file, zlib.compress(json.dumps(found).encode()))
    return found
