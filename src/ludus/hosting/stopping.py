"""Stops author code that is out of time. Promise: Python code ends, and nothing else is hit.

An exception is raised in the thread from outside (PyThreadState_SetAsyncExc) and arrives at its
next bytecode. A loop in Python therefore ends. A call inside C code (a long sleep, a numeric
library) ends when it returns to Python, and code that catches BaseException for ever does not
end: use `isolation = "process"` for such code.
"""

from __future__ import annotations

import ctypes
import signal
import threading
import time
import types
import weakref
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

_LOOK_S = 0.1
"""Between two looks of the watchdog at its loop."""
_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in.argtypes = (ctypes.c_ulong, ctypes.py_object)
_NOTHING: Any = ctypes.py_object()  # NULL, which None is not


class Stopped(BaseException):
    """Raised in author code that is out of time. Not an Exception, which authors often catch."""


_STOPPED: Any = ctypes.py_object(Stopped)


@dataclass(slots=True, eq=False)
class Raised:
    """What a call raised, as a value: futures take no StopIteration, and SystemExit ends a loop."""

    error: BaseException


class Stay:
    """A thread's stay in author code, which another thread may end."""

    __slots__ = ("_ident", "_inside", "_lock", "num_stops")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ident = 0
        self._inside = False
        self.num_stops = 0

    def run(self, function: Callable[[], Any]) -> Any:
        """Returns the result, or `Raised`. Afterwards no strike is pending."""
        self.num_stops = 0
        self._ident = threading.get_ident()
        self._inside = True
        outcome: Any = None
        try:
            outcome = _outcome(function)
        except Stopped as stopped:  # struck between the author's last bytecode and here
            outcome = Raised(stopped)
        while self._inside:
            try:  # noqa: SIM105  # nothing may be called between here and there: a call is where a strike arrives
                self._leave()
            except Stopped:
                pass
        return outcome

    def stop(self) -> bool:
        """Strikes if the thread is still inside. Code that swallowed a strike may be struck
        again, but not at once: leaving is safe from one strike, not from two."""
        with self._lock:
            if self._inside:
                self._strike()
                self.num_stops += 1
            return self._inside

    def _strike(self) -> None:
        _raise_in(self._ident, _STOPPED)

    def _leave(self) -> None:
        with self._lock:
            self._inside = False
        if self.num_stops:
            _raise_in(self._ident, _NOTHING)  # forget a strike that has not arrived


class Watch(Stay):
    """Stops author code that holds an event loop for longer than its limit. One per loop."""

    __slots__ = ("__weakref__", "_by_signal", "_limit_s", "_since_s", "_thread")

    def __init__(self) -> None:
        super().__init__()
        self._since_s = self._limit_s = 0.0
        self._thread: threading.Thread | None = None
        self._by_signal = False

    def use_signals(self) -> None:
        """For a loop in the main thread of our process: signals also end blocking system calls."""
        signal.signal(signal.SIGUSR2, self._struck)
        self._by_signal = True

    @types.coroutine
    def drive(self, coroutine: Coroutine[Any, Any, Any], *, limit_s: float) -> Generator[Any, Any, Any]:
        """Awaits the coroutine; the watchdog times what it does between two of its awaits."""
        if self._thread is None:
            self._thread = threading.Thread(target=_look, args=(weakref.ref(self),), name="watchdog", daemon=True)
            self._thread.start()
        proceed: Callable[[], Any] = partial(coroutine.send, None)
        while True:
            self._since_s, self._limit_s = time.monotonic(), limit_s
            outcome = self.run(proceed)
            if isinstance(outcome, Raised):
                if isinstance(outcome.error, StopIteration):
                    outcome.error.__traceback__ = None  # else it and its frames keep each other alive
                    return outcome.error.value
                raise outcome.error
            try:
                proceed = partial(coroutine.send, (yield outcome))
            except BaseException as error:  # most often a cancellation, which is for the author's code  # noqa: BLE001
                proceed = partial(coroutine.throw, error)

    def look(self) -> None:
        with self._lock:
            overdue = self._inside and time.monotonic() - self._since_s > self._limit_s
            if overdue:
                self._since_s = time.monotonic()  # if swallowed, the next strike comes after another limit
                self.num_stops += 1
                self._strike()

    def _strike(self) -> None:
        if self._by_signal and self._ident == threading.main_thread().ident:
            signal.pthread_kill(self._ident, signal.SIGUSR2)
        else:
            super()._strike()

    def _struck(self, *_: object) -> None:
        if self._inside and self.num_stops:
            raise Stopped


def _look(watch_ref: weakref.ref[Watch]) -> None:
    while (watch := watch_ref()) is not None:
        watch.look()
        del watch
        time.sleep(_LOOK_S)


def _outcome(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except BaseException as error:  # noqa: BLE001
        return Raised(error)
