"""Objects that a run file names: built-in, by entry point or by import path.

    "gae"               a built-in, or an entry point of an installed package
    "my_module:name"    an object in a module on the path or in the current folder
    "my_file.py:name"   an object in a file

Promise: an unknown name is refused with the near one, a failed import with the reason.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from ludus.errors import ConfigError, describe, nearest

P = TypeVar("P")


class Registry(Generic[P]):
    """Pieces of one kind by name. Built-in ones are added, by the modules of the package `home`."""

    def __init__(self, key: str, *, make: Callable[[str, Any], P], home: str = "", group: str = "") -> None:
        """`key`: the run file's key. `make(name, object)` checks what an entry point of `group` or
        an import path gave; without a group there are only built-in pieces."""
        self.key, self.group = key, group
        self._make, self._home = make, home
        self._pieces: dict[str, P] = {}
        self._outside: dict[str, P] = {}

    def add(self, name: str, found: Any) -> None:
        self._pieces[name] = self._make(name, found)

    def names(self) -> list[str]:
        """Built-in names first, then those of installed packages."""
        built_in = self.built_in()
        return [*built_in, *sorted(installed(self.group).keys() - built_in.keys())]

    def find(self, name: str) -> P:
        if name in self.built_in():
            return self._pieces[name]
        if name not in self._outside:
            found = find(name, key=self.key, known=self._pieces, group=self.group)
            self._outside[name] = self._make(name, found)
        return self._outside[name]

    def built_in(self) -> dict[str, P]:
        if self._home:
            import_all(self._home)
        return self._pieces


def installed(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)} if group else {}


def find(name: str, *, key: str, known: Iterable[str], group: str) -> Any:
    """The object of an entry point of `group`, or of an import path, that a run file's `key` names.
    `known` are the built-in names, for the error."""
    points = installed(group)
    if name in points:
        return _imported(points[name].load, f"{key} {name!r} of {points[name].value}")
    if group and ":" in name:
        return resolve(name)
    names = [*known, *sorted(points)]
    own = " Your own: module:name or file.py:name." if group else ""
    raise ConfigError(f"{key} is {name!r}, which is unknown.{nearest(name, names)} Known: {', '.join(names)}.{own}")


def resolve(source: str) -> Any:
    """The object that "module:name" or "file.py:name" names."""
    path, _, name = source.rpartition(":")
    if not path or not name.isidentifier():
        raise ConfigError(f"{source!r} is not an import path; expected module:name or file.py:name")
    if path.endswith(".py"):
        module = load_file(path)
    else:
        _append_to_path(os.getcwd())
        module = _imported(lambda: importlib.import_module(path), f"module {path!r}")
    if not hasattr(module, name):
        raise ConfigError(f"{source!r}: there is no {name!r} in it.{nearest(name, vars(module))}")
    return getattr(module, name)


def load_file(file: str) -> ModuleType:
    """The module of a Python file. Modules beside the file can be imported from it."""
    path = Path(file).resolve()
    if not path.is_file():
        raise ConfigError(f"{file!r} does not exist; expected a Python file")
    _append_to_path(str(path.parent))
    name = f"_ludus_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and type hints look their module up
    try:
        _imported(lambda: spec.loader.exec_module(module), repr(file))  # type: ignore[union-attr]
    except BaseException:
        del sys.modules[name]
        raise
    return module


@cache
def import_all(package: str) -> None:
    """Imports every module of a package; their decorators register pieces."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")


def _imported(load: Callable[[], Any], what: str) -> Any:
    try:
        return load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an author's file may call sys.exit
        raise ConfigError(f"{what} cannot be imported: {describe(error)}") from error


def _append_to_path(folder: str) -> None:
    """Last on the path, so that an author's modules shadow nothing."""
    if folder not in sys.path:
        sys.path.append(folder)
