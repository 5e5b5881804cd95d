"""The Channel seam: how a version travels from trainer to engine. Promise: what is fetched is what was published, or an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor


class Channel(Protocol):
    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Stores a snapshot of `tensors`; later changes to them do not show."""
        ...

    def fetch(self, version: int) -> Mapping[str, Tensor]:
        """The published tensors, checked against the checksum they were published with."""
        ...
