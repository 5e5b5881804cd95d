"""Several small tensors of a device in one piece of memory, and the same piece on the host. Promise: one copy brings or fetches them all,
and only fetching waits for the device.

The engine's thread gives up the interpreter's lock at each copy: a dozen small ones take longer than what they bring is computed in.
The host's piece is pinned, see models/transfer.py.
"""

from __future__ import annotations

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
        on_gpu = device.type == "cuda"
        self._there = torch.zeros(ends[-1], dtype=torch.uint8, device=device)
        self._here = torch.zeros(ends[-1], dtype=torch.uint8, pin_memory=on_gpu)
        self._brought = torch.cuda.Event() if on_gpu else None
        self.device: dict[str, Tensor] = {}
        self._arrays: dict[str, np.ndarray] = {}
        here = self._here.numpy()
        for (name, (shape, dtype)), start, size in zip(parts.items(), [0, *ends], sizes, strict=False):
            self.device[name] = self._there[start : start + size].view(dtype).view(shape)
            self._arrays[name] = here[start : start + size].view(_NUMPY[dtype]).reshape(shape)

    @property
    def host(self) -> dict[str, np.ndarray]:
        """To read what was fetched, and to write what is to be brought, once the last bringing has read it."""
        if self._brought is not None:
            self._brought.synchronize()
        return self._arrays

    def bring(self) -> None:
        """What the host has goes to the device."""
        self._there.copy_(self._here, non_blocking=True)
        if self._brought is not None:
            self._brought.record()

    def fetch(self) -> None:
        """What the device has is awaited and comes to the host."""
        self._here.copy_(self._there, non_blocking=True)
        if self._brought is not None:
            torch.cuda.current_stream(self._there.device).synchronize()
