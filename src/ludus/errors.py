"""Every failure, named by the border it crossed.

    LudusError
    ├── ConfigError          a run file, override, name or option that cannot be honoured (also a ValueError)
    ├── EnvironmentFailed    an environment's own code raised, hung or answered nonsense
    │   ├── TurnTimeout      one call into it took longer than a turn may
    │   └── SandboxFailed    what the environment's code runs in
    ├── WorkerLost           the process that hosted a session is gone
    ├── ControllerFailed     the service that places sessions refused, or cannot be reached
    ├── EngineFailed         generation or a weight load went wrong
    │   └── EngineLost       the server that generates cannot be reached
    ├── TrainerFailed        an optimiser step that must not be applied
    ├── CheckpointFailed     a checkpoint that cannot be written or read
    └── StoreFailed          the run folder cannot be written or read

A failed session is data: `border` names the failure where it happens, `rollout.play` records it, nobody else catches it.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class LudusError(Exception):
    """Base of all errors a user can meet. The message says what, got, expected, and the next move."""


class ConfigError(LudusError, ValueError):
    pass


class EnvironmentFailed(LudusError):
    pass


class TurnTimeout(EnvironmentFailed):
    pass


class SandboxFailed(EnvironmentFailed):
    pass


class WorkerLost(LudusError):
    pass


class ControllerFailed(LudusError):
    def __init__(self, message: str, *, status: int = 503) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status that says the same: 401 who are you, 403 not yours, 404 unknown, 409 conflict, 413, 429, 503 full."""


class EngineFailed(LudusError):
    pass


class EngineLost(EngineFailed):
    pass


class TrainerFailed(LudusError):
    pass


class CheckpointFailed(LudusError):
    pass


class StoreFailed(LudusError):
    pass


@contextmanager
def border(failure: type[LudusError], where: str) -> Iterator[None]:
    """Names whatever crosses this border: `with border(EnvironmentFailed, "guess/train/3 turn 2"): ...`. Works around awaits too."""
    try:
        yield
    except (LudusError, asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # foreign code may raise anything, BaseException included
        raise failure(f"{where}: {describe(error)}") from error


def first_fault(faults: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one that was first in a group, however deep: what a user should read."""
    fault: BaseException = faults
    while isinstance(fault, BaseExceptionGroup):
        fault = fault.exceptions[0]
    return fault


def describe(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__


def nearest(name: str, known: Iterable[str]) -> str:
    """' Did you mean "lr"?' for an error message, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""
