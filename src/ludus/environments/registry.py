"""Environments by name: built-ins, entry points of packages, an author's module or file.

Promise: nothing is imported before it is needed.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from ludus import plugins
from ludus.environments.author import AuthoredEnvironment, read_options, snake_case
from ludus.environments.environment import Environment
from ludus.errors import ConfigError, EnvironmentFailed, border, nearest

GROUP = "ludus.environments"
BUILT_IN = {
    "frozen_lake": "ludus.worlds.frozen_lake:FrozenLake",
    "guess": "ludus.worlds.guess:Guess",
    "kv_store": "ludus.worlds.kv_store:KvStore",
    "bandit": "ludus.worlds.bandit:Bandit",
    "corridor": "ludus.worlds.corridor:Corridor",
    "countdown": "ludus.worlds.countdown:Countdown",
    "maze": "ludus.worlds.maze:Maze",
    "sokoban": "ludus.worlds.sokoban:Sokoban",
    "twenty_questions": "ludus.worlds.twenty_questions:TwentyQuestions",
    "wordle": "ludus.worlds.wordle:Wordle",
    "database": "ludus.worlds.database.world:Database",
    "knowledge_graph": "ludus.worlds.knowledge_graph.world:KnowledgeGraph",
    "search_qa": "ludus.worlds.search_qa.world:SearchQa",
    "webshop": "ludus.worlds.webshop.world:Webshop",
    "textcraft": "ludus.worlds.textcraft.world:Textcraft",
    "shell": "ludus.worlds.shell.world:Shell",
    "babyai": "ludus.worlds.babyai:BabyAI",
    "sciworld": "ludus.worlds.sciworld.world:SciWorld",
    "household": "ludus.worlds.household.world:Household",
    "browser": "ludus.worlds.browser.world:Browser",
}


def names() -> list[str]:
    """Built-in environments, then those of installed packages."""
    return [*BUILT_IN, *sorted(plugins.installed(GROUP).keys() - BUILT_IN.keys())]


def make(name: str, *, source: str = "", options: Mapping[str, Any] | None = None) -> Environment:
    """The environment `name`. `source`: module:Class, file.py, file.py:Class; empty: registered."""
    return wrap(_from_source(source) if source else _registered(name), name=name, options=options)


def locate(name_or_source: str) -> tuple[str, str]:
    """(name, source) of a name or of a source, which is named after its class or file."""
    path, class_name = _split(name_or_source)
    if not class_name and not path.endswith(".py"):
        return name_or_source, ""
    return snake_case(class_name) if class_name else Path(path).stem, name_or_source


def source_of(environment: Environment) -> str:
    """A source for another process; empty if the class cannot be found from there."""
    cls = environment.author if isinstance(environment, AuthoredEnvironment) else type(environment)
    if "<locals>" in cls.__qualname__ or cls.__module__ not in sys.modules:
        return ""
    if cls.__module__ == "__main__" or cls.__module__.startswith("_ludus_"):
        return f"{inspect.getfile(cls)}:{cls.__name__}"
    return f"{cls.__module__}:{cls.__name__}"


def search_path() -> str:
    """PYTHONPATH with which another process finds every source that this one finds."""
    return os.pathsep.join(path for path in sys.path if path)


def wrap(found: Any, *, name: str = "", options: Mapping[str, Any] | None = None) -> Environment:
    """An author's class, or an Environment class or instance, as an Environment."""
    if not isinstance(found, type):
        if missing := [part for part in ("name", "tasks", "open") if not hasattr(found, part)]:
            lacks = f"which has no `{missing[0]}`; expected a class or an Environment"
            raise ConfigError(f"environment {name!r} is {found!r}, {lacks}")
        if options:
            raise ConfigError(f"environment {name!r} is an instance, which takes no options; got {dict(options)}")
        return cast(Environment, found)
    name = name or snake_case(found.__name__)
    with border(EnvironmentFailed, f"environment {name!r}: its constructor {found.__name__}() raised"):
        if not hasattr(found, "open"):
            return AuthoredEnvironment(found, name=name, options=options)
        return _instance(found, name=name, options=options or {})


def _instance(found: type, *, name: str, options: Mapping[str, Any]) -> Environment:
    takes_name = "name" in inspect.signature(found).parameters
    given = read_options(found, {"name": name, **options} if takes_name else options, name=name)
    try:
        environment = cast(Environment, found(**given))
    except ValueError as error:
        raise ConfigError(f"environment {name!r} refuses options {dict(options)}: {error}") from error
    if environment.name != name:
        raise ConfigError(
            f"environment {name!r} calls itself {environment.name!r}; use that name, or let its constructor take `name`"
        )
    return environment


def _registered(name: str) -> Any:
    if name in BUILT_IN:
        return plugins.resolve(BUILT_IN[name])
    known = names()
    if name not in known:
        raise ConfigError(
            f"unknown environment {name!r}.{nearest(name, known)} Known: {', '.join(known)}. "
            "For your own, set its source to file.py or module:Class."
        )
    return plugins.find(name, key="environment", known=known, group=GROUP)


def _split(source: str) -> tuple[str, str]:
    """(path or module, class); the class may be empty."""
    path, _, class_name = source.rpartition(":")
    return (path, class_name) if path and class_name.isidentifier() else (source, "")


def _from_source(source: str) -> Any:
    path, class_name = _split(source)
    if class_name:
        return plugins.resolve(source)
    if not path.endswith(".py"):
        raise ConfigError(f"source is {source!r}; expected file.py, file.py:Class or module:Class")
    return _only_environment(plugins.load_file(path), source=source)


def _only_environment(module: ModuleType, *, source: str) -> Any:
    own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    found = [cls for cls in own if hasattr(cls, "tasks") and (hasattr(cls, "setup") or hasattr(cls, "open"))]
    if len(found) != 1:
        listed = ", ".join(cls.__name__ for cls in found) or "none"
        raise ConfigError(
            f"source {source!r}: expected one class with `tasks` and `setup`, found {listed}. Name it: {source}:CLASS"
        )
    return found[0]
