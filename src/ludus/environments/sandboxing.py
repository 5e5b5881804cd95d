"""What an environment's untrusted code runs in: the author declares it, a run file may demand more. Promise: never less than either says.

    class Shell:
        sandbox = "namespace"          # or process, or container with `image = "..."`

        def setup(self, task, rng):
            self.sandbox.write("input.txt", task["text"])     # started before setup, closed after close
            ...

What gives sandboxes is handed in (`Provider`): environments know of it only that it does.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, cast, get_args

from ludus.config import SandboxKind
from ludus.errors import ConfigError, nearest

LEVELS = get_args(SandboxKind)
"""From the least contained to the most."""


class Provider(Protocol):
    def open(self, need: Any, *, image: str = "", session: str = "") -> Any:
        """A started sandbox for `need`: a level's name, or whatever the environment declares in its place."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Declared:
    """`need` is the author's word: the name of a level, or an object with a `level` and more."""

    need: Any = "none"
    image: str = ""

    @property
    def level(self) -> SandboxKind:
        return cast(SandboxKind, getattr(self.need, "level", self.need))

    def raised(self, level: str, *, image: str = "") -> Declared:
        """Level and image of the run file, where they ask for more."""
        if LEVELS.index(level) < LEVELS.index(self.level):
            level = self.level
        need = (
            self.need
            if isinstance(self.need, str)
            else dataclasses.replace(self.need, level=level, image=image or self.need.image)
        )
        return Declared(level if isinstance(need, str) else need, image or self.image)


def declared_by(author: object, *, name: str) -> Declared:
    found = Declared(getattr(author, "sandbox", "none"), getattr(author, "image", ""))
    if found.level not in LEVELS:
        raise ConfigError(
            f"environment {name!r}: sandbox is {found.level!r}; expected one of {', '.join(LEVELS)}.{nearest(str(found.level), LEVELS)}"
        )
    return found


def demand(environment: Any, level: str, *, image: str = "") -> None:
    """The run file's word. An environment whose code uses no sandbox cannot be put into one from outside: that is refused, not ignored."""
    if level == "none" and not image:
        return
    declared = getattr(environment, "declared", None)
    has = declared.level if isinstance(declared, Declared) else getattr(environment, "sandbox", "none")
    where = f"environments.{environment.name}.sandbox is {level!r}"
    if image and max(level, has, key=LEVELS.index) != "container":
        raise ConfigError(
            f"environments.{environment.name}.image is {image!r}, but its sandbox is {has!r}; an image is for a container"
        )
    if has == "none" and level != "none":
        raise ConfigError(
            f"{where}, but its code uses no sandbox, so nothing would be contained; only `isolation` could keep it apart"
        )
    if isinstance(declared, Declared):
        environment.declared = declared.raised(level, image=image)
    elif LEVELS.index(level) > LEVELS.index(has) or image:
        raise ConfigError(f"{where}, but it makes its own, {has!r}; see its options")
