"""Processes that are slow to start, such as browsers, kept for the next session."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Kept(Protocol):
    @property
    def alive(self) -> bool: ...

    def end(self) -> None: ...


K = TypeVar("K", bound=Kept)


class Pool(Generic[K]):
    """What no session uses now; `start` makes another when none is left. One that died is ended."""

    def __init__(self, start: Callable[[], K]) -> None:
        self._start = start
        self._free: list[K] = []
        self._lock = threading.Lock()
        atexit.register(self.end)

    def take(self) -> K:
        with self._lock:
            while self._free:
                if (kept := self._free.pop()).alive:
                    return kept
                kept.end()
        return self._start()

    def give_back(self, kept: K) -> None:
        if kept.alive:
            with self._lock:
                self._free.append(kept)
        else:
            kept.end()

    def end(self) -> None:
        with self._lock:
            while self._free:
                self._free.pop().end()
