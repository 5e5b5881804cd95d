"""Every error of Ludus, by the part that failed.

    LudusError
    ├── ConfigError          an invalid run file, override, name or option (also a ValueError)
    ├── EnvironmentFailed    an environment's own code raised, hung or returned an invalid value
    │   ├── TurnTimeout      one call into it exceeded the time limit of a turn
    │   └── SandboxFailed    the sandbox of the environment's code
    ├── WorkerLost           the process that hosted a session is gone
    ├── ControllerFailed     the controller refused, or cannot be reached
    ├── EngineFailed         generation or loading weights failed
    │   └── EngineLost       the inference server cannot be reached
    ├── TrainerFailed        an optimiser step that must not be applied
    ├── CheckpointFailed     a checkpoint that cannot be written or read
    └── StoreFailed          the run folder cannot be written or read

A failed session is data: `border` names the failure, and only `rollout.play` catches it.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class LudusError(Exception):
    """Base class. A message says what failed, got, expected, and what to do next."""


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
        """HTTP status: 401 unauthenticated, 403 forbidden, 404 unknown, 409 conflict, 413 too
        large, 429 too many requests, 503 no free slot."""


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
    """Raises what is raised inside as `failure`: `with border(EnvironmentFailed, "turn 2")`."""
    try:
        yield
    except (LudusError, asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # third-party code may raise anything
        raise failure(f"{where}: {describe(error)}") from error


def first_fault(faults: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first exception of a group, at any depth."""
    fault: BaseException = faults
    while isinstance(fault, BaseExceptionGroup):
        fault = fault.exceptions[0]
    return fault


def describe(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__


def nearest(name: str, known: Iterable[str]) -> str:
    """ " Did you mean 'lr'?" for an error message, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""
