"""Python's collector of cycles, in processes that play thousands of sessions. Promise: nothing that matters is collected later than at the
end, and what was there before the sessions is not looked through again and again.

A full collection visits every object and lets no thread run meanwhile: beside torch and transformers it took half a second, every few
seconds (docs/log.md). A turn leaves few cycles behind.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (100_000, 10, 100)
"""The last: so many collections of the middle-aged between two full ones, which go through the tokens of every conversation."""


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
