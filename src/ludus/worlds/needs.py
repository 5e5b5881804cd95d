"""What the built-in worlds stand on, beside Ludus itself. Promise: what is not listed here a world does not need. Nothing is imported.

`ludus doctor` says from this what is missing on a machine, and docs/worlds.md what to install and under which licences that stands.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Package:
    """From PyPI, in the extra `ludus[worlds]`."""

    name: str
    module: str
    licence: str


@dataclass(frozen=True, slots=True)
class Program:
    """Of the system: `apt-get install PACKAGE` brings it."""

    name: str
    package: str
    licence: str


@dataclass(frozen=True, slots=True)
class Needs:
    packages: tuple[Package, ...] = ()
    programs: tuple[Program, ...] = ()
    namespace: bool = False
    """A sandbox for what a model writes."""


NEEDS = {
    "shell": Needs(namespace=True),
    "babyai": Needs((Package("minigrid", "minigrid", "MIT"),)),
    "sciworld": Needs(
        (Package("scienceworld", "scienceworld", "Apache-2.0"),),
        (Program("java", "default-jre-headless", "GPL-2.0 with classpath exception"),),
    ),
    "household": Needs(
        (
            Package("alfworld", "alfworld", "MIT"),
            Package("fast-downward-textworld", "fast_downward", "GPL-3.0"),
        )
    ),
    "browser": Needs((Package("miniwob", "miniwob", "MIT"),), (Program("chromium", "chromium", "BSD-3-Clause"),)),
}
