"""Copies between the host and a device. `placed` waits for nothing, `fetched` for its stream.

Always through pinned memory. While a copy from or to pageable memory waits for a stream, the driver
lets no other thread launch kernels: an engine that fetched its tokens that way delayed the trainer
beside it by five times the trainer's own time (docs/log.md).
"""

from __future__ import annotations

import torch
from torch import Tensor


def placed(tensor: Tensor, device: torch.device | str) -> Tensor:
    if torch.device(device).type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def fetched(tensor: Tensor) -> Tensor:
    if not tensor.is_cuda:
        return tensor
    here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    here.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    return here
