"""From the host to a device. Promise: the host does not wait there for what was launched before."""

from __future__ import annotations

import torch
from torch import Tensor


def placed(tensor: Tensor, device: torch.device | str) -> Tensor:
    if torch.device(device).type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)  # a copy from ordinary memory would wait
