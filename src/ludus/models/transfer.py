"""Between the host and a device. Promise: bringing waits for nothing, and fetching for what the tensor is made of alone.

Always through pinned memory. While a copy from or into ordinary memory waits for a stream, the driver lets no other thread launch
anything: an engine that fetched its tokens so held up the trainer beside it five times as long as the trainer itself took
(docs/log.md).
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
