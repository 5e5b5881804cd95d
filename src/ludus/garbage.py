"""Python's collector of cycles, in processes that play thousands of sessions. Promise: what was there before the sessions is not looked
through again and again, and what the sessions have only when so much more of it is there than last time that cycles must be among it.

A collection visits every object of its generations, each token of each conversation included, and lets no thread run meanwhile: half a
second, every few seconds (docs/log.md). A turn leaves few cycles behind.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (500_000, 10, 10)
"""The first: so many more objects than at the last collection. Two thousand sessions at once have 330,000."""


@contextmanager
def rarely_collected() -> Iterator[None]:
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
