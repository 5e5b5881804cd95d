"""Several small tensors in one piece of device memory, mirrored on the host. Promise: one copy
transfers all of them, and only the reader of a download waits for the device.

The engine's thread releases the interpreter's lock at each copy: a dozen small copies take longer
than the computation. Copies go through pinned memory (models/transfer.py), newly allocated each
time: the host can write the next while the last is on its way.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

ALIGNED = 256
"""Bytes. Kernels are specialised on alignment; a tensor of its own would be aligned like this."""


class StagingBuffer:
    def __init__(self, device: torch.device, **parts: tuple[tuple[int, ...], torch.dtype]) -> None:
        """`parts`: shape and type by name; `device` and `host` hold them, at first zero."""
        sizes = [int(np.prod(shape)) * dtype.itemsize for shape, dtype in parts.values()]
        ends = np.cumsum([-(-size // ALIGNED) * ALIGNED for size in sizes]).tolist()
        self._on_gpu = device.type == "cuda"
        self._there = torch.zeros(ends[-1], dtype=torch.uint8, device=device)
        self._here = torch.zeros(ends[-1], dtype=torch.uint8)
        self._places = {
            name: (start, size, shape, dtype)
            for (name, (shape, dtype)), start, size in zip(parts.items(), [0, *ends], sizes, strict=False)
        }
        self.device = self._split(self._there)
        self.host = {name: part.numpy() for name, part in self._split(self._here).items()}

    def upload(self) -> None:
        self._there.copy_(self._here.pin_memory() if self._on_gpu else self._here, non_blocking=True)

    def download(self) -> Callable[[], dict[str, np.ndarray]]:
        """Starts a copy of the parts as they will be after all work launched so far; the returned
        function waits for it. Work launched later does not change it."""
        here = torch.empty(len(self._there), dtype=torch.uint8, pin_memory=self._on_gpu)
        here.copy_(self._there, non_blocking=True)
        arrived = torch.cuda.Event() if self._on_gpu else None
        if arrived is not None:  # of its own device, which need not be the current one
            arrived.record(torch.cuda.current_stream(self._there.device))

        def wait() -> dict[str, np.ndarray]:
            if arrived is not None:
                arrived.synchronize()
            return {name: part.numpy() for name, part in self._split(here).items()}

        return wait

    def _split(self, whole: Tensor) -> dict[str, Tensor]:
        return {
            name: whole[start : start + size].view(dtype).view(shape)
            for name, (start, size, shape, dtype) in self._places.items()
        }
