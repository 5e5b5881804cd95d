"""Sandboxes started ahead. Promise: each is used once, and `take` waits only if none is ready."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from ludus.errors import SandboxFailed
from ludus.sandboxes.sandbox import Need, Sandbox

S = TypeVar("S", bound=Sandbox)
_log = logging.getLogger(__name__)


class Pool(Generic[S]):
    """`make` starts a sandbox. `size` of them are kept ready per need, from its first use on."""

    def __init__(self, make: Callable[[Need], S], *, size: int) -> None:
        self._make, self._size = make, size
        self._ready: dict[Need, deque[S]] = {}
        self._filling: set[Need] = set()
        self._lock = threading.Lock()
        self._closed = False

    def take(self, need: Need) -> S:
        with self._lock:
            ready = self._ready.setdefault(need, deque())
            sandbox = ready.popleft() if ready else None
        self._refill(need)
        return sandbox if sandbox is not None else self._make(need)

    def num_ready(self, need: Need) -> int:
        with self._lock:
            return len(self._ready.get(need, ()))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            left = [sandbox for ready in self._ready.values() for sandbox in ready]
            self._ready.clear()
        for sandbox in left:
            sandbox.close()

    def _refill(self, need: Need) -> None:
        with self._lock:
            if self._closed or need in self._filling or len(self._ready[need]) >= self._size:
                return
            self._filling.add(need)
        threading.Thread(target=self._fill, args=(need,), name="sandbox-pool", daemon=True).start()

    def _fill(self, need: Need) -> None:
        """One at a time, so that sessions that wait for a sandbox are not slowed down."""
        try:
            while self._wants(need):
                sandbox = self._make(need)
                with self._lock:
                    kept = not self._closed
                    if kept:
                        self._ready[need].append(sandbox)
                if not kept:
                    sandbox.close()
        except SandboxFailed as error:
            _log.warning("cannot start a sandbox ahead: %s", error)  # `take` raises the same error
        finally:
            with self._lock:
                self._filling.discard(need)

    def _wants(self, need: Need) -> bool:
        with self._lock:
            return not self._closed and len(self._ready.get(need, ())) < self._size
