"""The files of the alfworld package that we build on.

Promise: alfworld itself is not imported, because that makes a folder in the user's home and sets
ALFWORLD_DATA, which names the official games.
"""

from __future__ import annotations

import importlib.util
import json
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from ludus.errors import EnvironmentFailed


@cache
def folder() -> Path:
    for name in ("alfworld", "fast_downward"):
        if importlib.util.find_spec(name) is None:
            raise EnvironmentFailed(f'household needs {name}, which is not installed: pip install "ludus[worlds]"')
    spec = importlib.util.find_spec("alfworld")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def constants() -> ModuleType:
    """The classes of things, what fits where, and what can be cleaned, heated, cooled or sliced."""
    return _module("gen/constants.py")


def goal(kind: str) -> dict[str, Any]:
    """`pddl`, a formula, and `templates`, sentences, of a kind of task."""
    return dict(_module("gen/goal_library.py").gdict[kind])


@cache
def _text(name: str) -> str:
    return (folder() / "data" / name).read_text()


domain, grammar = partial(_text, "alfred.pddl"), partial(_text, "alfred.twl2")


@cache
def floor_plan(number: int) -> tuple[tuple[str, ...], dict[str, list[float]]]:
    """Classes of the things in a room, and the place (x, y, turn, tilt) of each receptacle."""
    layouts = folder() / "gen" / "layouts"
    classes = json.loads((layouts / f"FloorPlan{number}-objects.json").read_text())
    places = json.loads((layouts / f"FloorPlan{number}-openable.json").read_text())
    return tuple(sorted(set(classes))), dict(sorted(places.items()))


@cache
def _module(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"_alfworld_{Path(path).stem}", folder() / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
