"""Rarer garbage collection for processes that play thousands of sessions. Promise: older objects
are not scanned, those of the sessions once a minute or after many allocations.

A collection visits every token of every conversation and blocks all threads: half a second, every
few seconds (docs/log.md). Our turns leave no reference cycles behind; an environment's may.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (500_000, 10, 10)
"""The first is the number of new objects; 2,000 concurrent sessions have 330,000."""
EVERY_S = 60.0


@contextmanager
def rarely_collected() -> Iterator[None]:
    before, over = gc.get_threshold(), threading.Event()
    collector = threading.Thread(target=_collect, args=(over,), name="collector", daemon=True)
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    collector.start()
    try:
        yield
    finally:
        over.set()
        collector.join()
        gc.set_threshold(*before)
        gc.unfreeze()


def _collect(over: threading.Event) -> None:
    while not over.wait(EVERY_S):
        gc.collect()
