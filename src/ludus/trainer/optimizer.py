"""AdamW and its learning rates. Promise: a schedule is a pure function of the step, so a resumed run meets the same values."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn
from torch.optim import AdamW

Schedule = Callable[[int], float]
"""Optimiser steps taken so far -> the learning rate of the next one."""


def make_optimizer(model: nn.Module, *, lr: float, betas: tuple[float, float], weight_decay: float) -> AdamW:
    """Matrices decay; norms, biases and other vectors do not."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return AdamW([group for group in groups if group["params"]], lr=lr, betas=betas, fused=True)


def warmup(lr: float, *, steps: int) -> Schedule:
    """lr / steps, 2 lr / steps, ... lr, and then lr for ever."""
    return lambda step: lr * min(1.0, (step + 1) / steps) if steps else lr


def warmup_cosine(lr: float, *, warmup_steps: int, steps: int) -> Schedule:
    """Warm-up, then half a cosine down to 0 after the last of `steps`."""
    rising = warmup(lr, steps=warmup_steps)

    def rate(step: int) -> float:
        share = (step - warmup_steps) / max(1, steps - warmup_steps)
        return rising(step) * 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, share))))

    return rate
