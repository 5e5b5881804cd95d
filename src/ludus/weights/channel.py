"""How the weights of a version travel from trainer to engine.

Promise: an engine gets exactly the tensors that were published, or an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Source(Protocol):
    """Where published weights are.

    An engine in this process calls `fetch`. An engine behind HTTP reads where the files are from
    the source's own fields (`FolderChannel.folder`) and lets its server fetch them."""

    def fetch(self, version: int) -> Mapping[str, Tensor]:
        """Return the published tensors, checked against the checksum they were published with."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A source of one version, held after the channel that it came from has dropped it."""

    version: int
    tensors: Mapping[str, Tensor]

    def fetch(self, version: int) -> Mapping[str, Tensor]:
        assert version == self.version, f"this snapshot holds version {self.version}, not {version}"
        return self.tensors


class Channel(Source, Protocol):
    """The trainer's side of a source."""

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Store a snapshot of `tensors`; later changes to them have no effect on it."""
