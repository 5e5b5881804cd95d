"""What the host must provide for an environment: a process per session, a sandbox.

Promise: a session never gets less than the class declares or the run file demands.

    class Shell:
        isolation = "process"          # each session runs in a process of its own
        sandbox = "namespace"          # or "process", or "container" with `image = "..."`

        def setup(self, task, rng):
            self.sandbox.write("input.txt", task["text"])   # started before setup
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args

from ludus.config import SandboxKind
from ludus.errors import ConfigError, nearest

KINDS: tuple[SandboxKind, ...] = get_args(SandboxKind)
"""Sandbox kinds, from the least contained to the most."""
Isolation = Literal["none", "process"]
"""none: sessions share a process. process: each session has its own, for code that leaks memory,
holds the interpreter for long or cannot be stopped on a thread. The process is reused for later
sessions."""


class Provider(Protocol):
    """Starts sandboxes. Environments know nothing else about it."""

    def open(self, need: Any, *, image: str = "", session: str = "") -> Any:
        """A started sandbox. `need` is `Needs.sandbox`."""
        ...


@dataclass(frozen=True, slots=True)
class Needs:
    isolation: Isolation = "none"
    sandbox: Any = "none"
    """Name of a sandbox kind, or a `ludus.sandboxes.sandbox.Need`."""
    image: str = ""
    """Container image, if `sandbox` names none."""
    own_sandbox: bool = False
    """The environment starts the sandbox itself; the host starts none."""

    @property
    def kind(self) -> SandboxKind:
        kind: SandboxKind = getattr(self.sandbox, "kind", self.sandbox)
        return kind

    @property
    def hosted_sandbox(self) -> bool:
        """Whether the host starts a sandbox for each session."""
        return self.kind != "none" and not self.own_sandbox

    def raised(self, kind: str, *, image: str = "") -> Needs:
        """The same needs with at least `kind`, and with `image` if it is given."""
        sandbox: Any = max(kind, self.kind, key=KINDS.index)
        if not isinstance(self.sandbox, str):
            sandbox = replace(self.sandbox, kind=sandbox, image=image or self.sandbox.image)
        return replace(self, sandbox=sandbox, image=image or self.image)


def needs_of(environment: Any) -> Needs:
    """The needs of any environment. One without `needs` starts its own sandbox, if it names one."""
    needs = getattr(environment, "needs", None)
    if isinstance(needs, Needs):
        return needs
    return replace(read_needs(environment, name=getattr(environment, "name", "")), own_sandbox=True)


def read_needs(author: object, *, name: str) -> Needs:
    """Needs from the attributes `isolation`, `sandbox` and `image` of an author's class."""
    needs = Needs(
        getattr(author, "isolation", "none"), getattr(author, "sandbox", "none"), getattr(author, "image", "")
    )
    for key, found, known in (("isolation", needs.isolation, get_args(Isolation)), ("sandbox", needs.kind, KINDS)):
        if found not in known:
            raise ConfigError(
                f"environment {name!r}: {key} is {found!r}; expected one of {', '.join(known)}.{nearest(str(found), known)}"
            )
    return needs


def demand(environment: Any, kind: str, *, image: str = "") -> None:
    """Applies the run file's sandbox kind and image. Refuses a kind that would contain nothing."""
    if kind == "none" and not image:
        return
    needs = needs_of(environment)
    where = f"environments.{environment.name}.sandbox is {kind!r}"
    if image and max(kind, needs.kind, key=KINDS.index) != "container":
        raise ConfigError(
            f"environments.{environment.name}.image is {image!r}, but its sandbox is {needs.kind!r}; "
            "an image is for a container"
        )
    if needs.kind == "none" and kind != "none":
        raise ConfigError(
            f"{where}, but its code uses no sandbox, so nothing would be contained; "
            'set `isolation = "process"` on its class to run it in a process of its own'
        )
    if not needs.own_sandbox:
        environment.needs = needs.raised(kind, image=image)
    elif KINDS.index(kind) > KINDS.index(needs.kind) or image:
        raise ConfigError(f"{where}, but the environment makes its own, {needs.kind!r}; see its options")
