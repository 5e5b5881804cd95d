"""How many CPU threads a piece of work uses. Promise: the caller's thread gets back the number it had.

torch keeps this number per thread, and autograd runs a CPU backward pass in the thread that asked for it (measured on torch 2.13), so
setting it around forward and backward in one thread is enough. A thread that never set it starts with the last value any thread set.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """`count` 0 leaves torch's own choice."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
