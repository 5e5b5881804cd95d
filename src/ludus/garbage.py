"""Python's collector of cycles, in processes that play thousands of sessions. Promise: what was there before the sessions is not looked
through again and again, and what the sessions have once a minute, or when much more of it is there than last time.

A collection visits every object of its generations, each token of each conversation included, and lets no thread run meanwhile: half a
second, every few seconds (docs/log.md). A turn of ours leaves no cycle behind; an author's class may, with all that it holds.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (500_000, 10, 10)
"""The first: so many more objects than at the last collection. Two thousand sessions at once have 330,000."""
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
