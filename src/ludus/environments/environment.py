"""The Environment seam: what a world must offer. Most authors write neither protocol, but a short class (see author.py)."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Literal, Protocol, cast, get_args, runtime_checkable

from ludus.errors import ConfigError, nearest
from ludus.types import Action, Observation, Task

SPLITS = ("train", "dev", "test")
REQUIRED_SPLITS = ("train", "test")
"""What no environment can do without; dev is for choosing between trained models, where there are tasks enough."""
Isolation = Literal["none", "process"]


@runtime_checkable
class Session(Protocol):
    """One live attempt at a task; single use. A plain method runs on a thread and may block; an async one runs on the event loop.

    Two more methods make warm starts and `ludus env check` possible; they are looked up by name, and may be missing or None:
    `solve() -> Action`, the best action now, and `random_action(rng) -> Action`, any valid one.
    """

    def start(self) -> Observation | Awaitable[Observation]:
        """The first prompt and the tools on offer. It depends on the task alone: attempts with other seeds see the same."""
        ...

    def act(self, action: Action) -> Observation | Awaitable[Observation]: ...

    def close(self) -> Awaitable[None] | None:
        """Frees everything; safe to call twice."""
        ...


class Environment(Protocol):
    """One attribute more may be there, see `isolation_of`: `isolation = "process"`."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def max_turns(self) -> int | None:
        """Turns that a session may take; None leaves it to the run."""
        ...

    @property
    def options(self) -> Mapping[str, Any]:
        """Every knob with its present value."""
        ...

    def tasks(self, split: str) -> list[Task]: ...

    def open(self, task: Task, *, seed: int) -> Session | Awaitable[Session]:
        """A new session. `task` decides the problem, `seed` only the noise."""
        ...


def isolation_of(environment: object, *, name: str = "") -> Isolation:
    """none: sessions share a process. process: each has one to itself, for code that leaks, computes for long, or hangs where no thread
    can be stopped; the process is used again for later sessions, and replaced in time."""
    found = getattr(environment, "isolation", "none")
    if found not in get_args(Isolation):
        known = get_args(Isolation)
        raise ConfigError(
            f"environment {name or getattr(environment, 'name', '')!r}: isolation is {found!r}; "
            f"expected one of {', '.join(known)}.{nearest(str(found), known)}"
        )
    return cast(Isolation, found)
