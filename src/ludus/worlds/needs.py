"""The packages and programs that the built-in worlds need beside Ludus itself. Nothing is imported.

`ludus doctor` lists what a machine lacks from this, and docs/worlds.md what to install.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Package:
    """A package on PyPI, in the extra `ludus[worlds]`."""

    name: str
    module: str
    licence: str


@dataclass(frozen=True, slots=True)
class Program:
    """A program that `apt-get install PACKAGE` brings."""

    name: str
    package: str
    licence: str


@dataclass(frozen=True, slots=True)
class Needs:
    packages: tuple[Package, ...] = ()
    programs: tuple[Program, ...] = ()
    namespace: bool = False
    """Whether it needs a namespace sandbox."""


NEEDS = {
    "shell": Needs(namespace=True),
    "babyai": Needs((Package("minigrid", "minigrid", "MIT"),)),
    "sciworld": Needs(
        (Package("scienceworld", "scienceworld", "Apache-2.0"),),
        (Program("java", "default-jre-headless", "GPL-2.0 with classpath exception"),),
    ),
    "household": Needs(
        (Package("alfworld", "alfworld", "MIT"), Package("fast-downward-textworld", "fast_downward", "GPL-3.0"))
    ),
    "browser": Needs((Package("miniwob", "miniwob", "MIT"),), (Program("chromium", "chromium", "BSD-3-Clause"),)),
}
