"""Several small tensors of a device in one piece of memory, and the same piece on the host. Promise: one copy brings or fetches them all,
and only who reads what was fetched waits for the device.

The engine's thread gives up the interpreter's lock at each copy: a dozen small ones take longer than what they bring is computed in.
Both ways go through pinned memory, see models/transfer.py, a new piece each time: the host writes the next while the last is on its way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

ALIGNED = 256
"""Bytes. Kernels are compiled for where a tensor begins; one of its own would begin at such a place too."""
_NUMPY: dict[torch.dtype, Any] = {torch.int64: np.int64, torch.int32: np.int32, torch.float32: np.float32}


class Packed:
    def __init__(self, device: torch.device, **parts: tuple[tuple[int, ...], torch.dtype]) -> None:
        """`parts`: by name, shape and type; `device` and `host` have each of them by that name, zero at first."""
        sizes = [int(np.prod(shape)) * dtype.itemsize for shape, dtype in parts.values()]
        ends = np.cumsum([-(-size // ALIGNED) * ALIGNED for size in sizes]).tolist()
        self._on_gpu = device.type == "cuda"
        self._there = torch.zeros(ends[-1], dtype=torch.uint8, device=device)
        self._here = torch.zeros(ends[-1], dtype=torch.uint8)
        self._places = {
            name: (start, size, shape, dtype)
            for (name, (shape, dtype)), start, size in zip(parts.items(), [0, *ends], sizes, strict=False)
        }
        self.device: dict[str, Tensor] = {
            name: self._there[start : start + size].view(dtype).view(shape)
            for name, (start, size, shape, dtype) in self._places.items()
        }
        self.host = self._cut(self._here)

    def bring(self) -> None:
        """What the host has goes to the device."""
        self._there.copy_(self._here.pin_memory() if self._on_gpu else self._here, non_blocking=True)

    def fetching(self) -> Callable[[], dict[str, np.ndarray]]:
        """What the device has, or will have when all that was launched is computed; the answer waits for it. What is launched later
        changes nothing of it."""
        here = torch.empty(len(self._there), dtype=torch.uint8, pin_memory=self._on_gpu)
        here.copy_(self._there, non_blocking=True)
        fetched = torch.cuda.Event() if self._on_gpu else None
        if fetched is not None:  # on the stream of its own device, which need not be the current one
            fetched.record(torch.cuda.current_stream(self._there.device))

        def awaited() -> dict[str, np.ndarray]:
            if fetched is not None:
                fetched.synchronize()
            return self._cut(here)

        return awaited

    def _cut(self, whole: Tensor) -> dict[str, np.ndarray]:
        array = whole.numpy()
        return {
            name: array[start : start + size].view(_NUMPY[dtype]).reshape(shape)
            for name, (start, size, shape, dtype) in self._places.items()
        }
