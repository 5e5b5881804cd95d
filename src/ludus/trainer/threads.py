"""The number of CPU threads of a piece of work.

torch keeps this number per thread, and autograd runs a CPU backward pass in the calling thread (measured
on torch 2.13), so setting it around both passes in one thread is enough. A thread that never set it
starts with the last value that any thread set.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Use `count` threads (0: torch's default), then restore the number from before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
