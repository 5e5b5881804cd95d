"""Versions inside one process. Promise: a fetched version is bit for bit what was published, or an error; the trainer goes on writing
to its own tensors meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import MappingProxyType

from torch import Tensor

from ludus.errors import EngineFailed
from ludus.weights.checksum import Fingerprint, fingerprint, verify


class MemoryChannel:
    """Keeps the newest `keep` versions. Thread-safe: the trainer publishes from its thread, engines fetch from theirs."""

    def __init__(self, *, keep: int = 4) -> None:
        self._keep = keep
        self._lock = threading.Lock()
        self._versions: dict[int, tuple[Mapping[str, Tensor], Mapping[str, Fingerprint]]] = {}

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        snapshot = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        # reading the checksums waits for the copies: whoever fetches them may use them on another CUDA stream
        prints = {name: fingerprint(tensor) for name, tensor in snapshot.items()}
        with self._lock:
            self._versions[version] = (MappingProxyType(snapshot), prints)
            for old in sorted(self._versions)[: -self._keep]:
                del self._versions[old]

    def fetch(self, version: int) -> Mapping[str, Tensor]:
        """The snapshot itself, not a copy: copy out of it, never write to it (the next fetch would notice)."""
        with self._lock:
            if version not in self._versions:
                raise EngineFailed(
                    f"version {version} is not on the channel; it holds {sorted(self._versions)}. Load the newest."
                )
            tensors, prints = self._versions[version]
        verify(tensors, prints, version=version)
        return tensors
