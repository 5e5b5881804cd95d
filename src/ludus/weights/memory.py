"""Versions inside one process.

Promise: a fetched version is bit for bit what was published, or an error. The trainer may keep
writing to its own tensors meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from ludus.errors import EngineFailed

ROW = 8192
"""Bytes of a row when a long vector is folded into a table."""


class MemoryChannel:
    """Keeps the newest `keep` versions. Thread-safe: trainer and engines have their own threads."""

    def __init__(self, *, keep: int = 4) -> None:
        self._keep = keep
        self._lock = threading.Lock()
        self._versions: dict[int, list[_Buffer]] = {}

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        kinds: dict[tuple[torch.dtype, torch.device], dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            kinds.setdefault((tensor.dtype, tensor.device), {})[name] = tensor.detach()
        buffers = [_Buffer.of(alike) for alike in kinds.values()]
        with self._lock:
            self._versions[version] = buffers
            for old in sorted(self._versions)[: -self._keep]:
                del self._versions[old]

    def fetch(self, version: int) -> Mapping[str, Tensor]:
        """Return the snapshot itself, not a copy. Never write to it: the next fetch would fail."""
        with self._lock:
            if version not in self._versions:
                raise EngineFailed(
                    f"version {version} is not on the channel; it holds {sorted(self._versions)}. Load the newest."
                )
            buffers = self._versions[version]
        if changed := [name for buffer in buffers for name in buffer.changed()]:
            more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
            raise EngineFailed(
                f"tensor {changed[0]!r}{more} of version {version} is not what was published. "
                "Something wrote to it after the publish; publish it again."
            )
        return MappingProxyType({name: tensor for buffer in buffers for name, tensor in buffer.tensors.items()})


@dataclass(frozen=True, slots=True)
class _Buffer:
    """Tensors of one dtype and device in one buffer, copied and checked in a few operations.

    Tensor by tensor, the host would wait for the GPU hundreds of times."""

    whole: Tensor
    tensors: Mapping[str, Tensor]
    published: tuple[Tensor, Tensor]
    """Checksums by row and column."""

    @classmethod
    def of(cls, sources: Mapping[str, Tensor]) -> _Buffer:
        first, starts, count = next(iter(sources.values())), dict[str, int](), 0
        width = ROW // first.element_size()
        for name, source in sources.items():
            starts[name] = count
            count += -(-source.numel() // width) * width  # a row is of one tensor
        # the padding of a row is checked and never read
        whole = torch.empty(count, dtype=first.dtype, device=first.device)
        places = {
            name: whole[starts[name] : starts[name] + source.numel()].view(source.shape)
            for name, source in sources.items()
        }
        with torch.no_grad():
            torch._foreach_copy_(list(places.values()), list(sources.values()))
        buffer = cls(whole, places, _sums(whole))
        if whole.is_cuda:  # an engine may read it on another stream
            torch.cuda.current_stream(whole.device).synchronize()
        return buffer

    def changed(self) -> list[str]:
        now = _sums(self.whole)
        if all(torch.equal(a, b) for a, b in zip(now, self.published, strict=True)):
            return []
        rows = set(torch.nonzero(now[0] != self.published[0])[:, 0].tolist())
        found = [name for name, tensor in self.tensors.items() if not rows.isdisjoint(_rows_of(tensor))]
        return found or list(self.tensors)  # values moved within a row: only the column sums differ


def _sums(flat: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of a vector's bits by row and by column, as wrapping 64-bit integers: a value that
    changes or moves changes at least one of them."""
    table = flat.view(torch.int64).view(-1, ROW // 8)
    return table.sum(dim=1), table.sum(dim=0)


def _rows_of(tensor: Tensor) -> range:
    width = ROW // tensor.element_size()
    first = tensor.storage_offset() // width
    return range(first, first + -(-tensor.numel() // width))
