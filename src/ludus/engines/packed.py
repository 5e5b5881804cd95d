"""Several small tensors of a device in one piece of memory, and the same piece on the host. Promise: one copy brings or fetches them all.

A copy between host and device is waited for, and the engine's thread gives up the interpreter's lock at each: a dozen small ones take
longer than what they bring is computed in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

ALIGNED = 256
"""Bytes. Kernels are compiled for where a tensor begins; one of its own would begin at such a place too."""
_NUMPY: dict[torch.dtype, Any] = {torch.int64: np.int64, torch.float32: np.float32}


class Packed:
    def __init__(self, device: torch.device, **parts: tuple[tuple[int, ...], torch.dtype]) -> None:
        """`parts`: by name, shape and type; `device` and `host` have each of them by that name, zero at first."""
        sizes = [int(np.prod(shape)) * dtype.itemsize for shape, dtype in parts.values()]
        ends = np.cumsum([-(-size // ALIGNED) * ALIGNED for size in sizes]).tolist()
        self._there = torch.zeros(ends[-1], dtype=torch.uint8, device=device)
        self._here = torch.zeros(ends[-1], dtype=torch.uint8)
        self.device: dict[str, Tensor] = {}
        self.host: dict[str, np.ndarray] = {}
        here = self._here.numpy()
        for (name, (shape, dtype)), start, size in zip(parts.items(), [0, *ends], sizes, strict=False):
            self.device[name] = self._there[start : start + size].view(dtype).view(shape)
            self.host[name] = here[start : start + size].view(_NUMPY[dtype]).reshape(shape)

    def bring(self) -> None:
        """What the host has goes to the device."""
        self._there.copy_(self._here)

    def fetch(self) -> None:
        """What the device has is awaited and comes to the host."""
        self._here.copy_(self._there)
