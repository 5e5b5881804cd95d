"""A cheap fingerprint of a tensor's bits. Promise: equal bits give equal numbers on every device; a flipped bit or two swapped
elements give another one. It guards against mistakes, not against malice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ludus.errors import EngineFailed

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_COLUMN_FACTOR = 1_000_003
"""Keeps the row sum and the column sum from cancelling when an element moves along the diagonal."""
ROW = 8192
"""Bytes of a row when a long vector is folded into a table."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    shape: tuple[int, ...]
    dtype: str
    checksum: int

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)} checksum {self.checksum}"


def fingerprint(tensor: Tensor) -> Fingerprint:
    """Row and column sums of the bit pattern, each weighed by its position, in wrapping 64-bit integers: two passes over the memory."""
    bits = tensor.detach().contiguous().view(_INTEGERS[tensor.element_size()])
    table = bits.reshape(-1, bits.shape[-1]) if bits.dim() > 1 else bits.reshape(1, -1)
    down = table.sum(dim=1, dtype=torch.int64)
    across = table.sum(dim=0, dtype=torch.int64)
    checksum = (down * _positions(down)).sum() + _COLUMN_FACTOR * (across * _positions(across)).sum()
    return Fingerprint(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), int(checksum))


def sums(flat: Tensor) -> tuple[Tensor, Tensor]:
    """Of a vector's bits, folded into rows: by row and by column, on its device, in wrapping 64-bit integers, as which they are read too.
    What changes or moves shows in one of them."""
    table = flat.view(torch.int64).view(-1, ROW // 8)
    return table.sum(dim=1), table.sum(dim=0)


def _positions(sums: Tensor) -> Tensor:
    return torch.arange(1, len(sums) + 1, device=sums.device)


def verify(tensors: Mapping[str, Tensor], expected: Mapping[str, Fingerprint], *, version: int) -> None:
    """Raises EngineFailed when a tensor is missing, foreign, or not what was published."""
    missing, foreign = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or foreign:
        raise EngineFailed(
            f"version {version} does not hold the tensors that were published: missing {missing[:3]}, unexpected {foreign[:3]} "
            f"(of {len(expected)}). Publish it again."
        )
    for name, tensor in tensors.items():
        got = fingerprint(tensor)
        if got != expected[name]:
            raise EngineFailed(
                f"tensor {name!r} of version {version} is {got}; published was {expected[name]}. Something wrote to it after "
                "the publish, or the file is damaged; publish it again."
            )
