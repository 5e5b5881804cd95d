"""The Environment protocol. Most authors write a short class instead (author.py)."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Protocol, runtime_checkable

from ludus.environments.needs import Needs
from ludus.types import Action, Observation, Task

SPLITS = ("train", "dev", "test")
REQUIRED_SPLITS = ("train", "test")
"""`dev` is optional: it is for choosing between trained models."""


@runtime_checkable
class Session(Protocol):
    """One live attempt at a task, used once.

    A plain method runs on a thread and may block; an async one runs on the event loop. Two more
    methods, which may be missing or None, serve warm starts and `ludus env check`: `solve() ->
    Action`, the best action now, and `random_action(rng) -> Action`, any valid one."""

    def start(self) -> Observation | Awaitable[Observation]:
        """The first prompt and the tools on offer. Depends on the task alone, not on the seed."""
        ...

    def act(self, action: Action) -> Observation | Awaitable[Observation]: ...

    def close(self) -> Awaitable[None] | None:
        """Frees everything. Must be idempotent."""
        ...


class Environment(Protocol):
    """`EnvironmentBase` has defaults for the members that an environment may leave out."""

    name: str
    description: str
    max_turns: int | None
    """Turns per session; None leaves the limit to the run."""
    options: Mapping[str, Any]
    """Every option with its present value."""
    capabilities: tuple[str, ...]
    """What the environment asks of an agent, e.g. ("planning", "memory")."""
    lists_answers: bool
    """The first prompt lists the possible answers, so that the right one in it is no leak."""
    needs: Needs
    """What the host must provide. `demand` replaces it when the run file asks for more."""

    def tasks(self, split: str) -> list[Task]: ...

    def open(self, task: Task, *, seed: int, sandbox: Any = None) -> Session | Awaitable[Session]:
        """A new session. `task` decides the problem, `seed` only the noise. `sandbox` is a started
        `ludus.sandboxes.sandbox.Sandbox`, which the host closes, if `needs` asks for one."""
        ...


class EnvironmentBase:
    """Defaults of `Environment`. What is left to write: `name`, `tasks` and `open`."""

    description: str = ""
    max_turns: int | None = None
    options: Mapping[str, Any] = {}
    capabilities: tuple[str, ...] = ()
    lists_answers: bool = False
    needs: Needs = Needs()
