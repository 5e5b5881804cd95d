"""AdamW, the float32 weights it updates, and its learning rates.

Promise: a schedule is a pure function of the step, so a resumed run has the same values. Updates
and sums of gradients are in float32, never in half precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim import AdamW

Schedule = Callable[[int], float]
"""Optimiser steps taken so far -> the learning rate of the next one."""


class Named(Protocol):
    def named_parameters(self) -> Iterable[tuple[str, nn.Parameter]]: ...


class Masters:
    """The trained weights of `model` in float32, by name.

    In a float32 model they are its own parameters. In half precision they are copies: the model
    computes in `dtype`, gradients are summed in float32, and `copy_back` rounds the copies into the
    model. A trained weight takes 18 bytes: model 2, copy 4, gradient 4, AdamW 8."""

    def __init__(self, model: nn.Module, *, dtype: torch.dtype) -> None:
        """Cast `model` from float32 to `dtype`. Buffers, such as rotary frequencies, stay."""
        self._named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._halves: list[nn.Parameter] = []
        if dtype != torch.float32:
            self._halves = list(self._named.values())
            self._named = {name: nn.Parameter(half.detach().float()) for name, half in self._named.items()}
        cast_weights(model, dtype)
        for half in self._halves:
            half.grad_dtype = torch.float32

    def named_parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        return self._named.items()

    def parameters(self) -> list[nn.Parameter]:
        return list(self._named.values())

    def take_gradients(self) -> None:
        """Hand the model's gradients to the float32 weights."""
        for half, master in zip(self._halves, self._named.values(), strict=False):
            master.grad = half.grad

    def forget_gradients(self) -> None:
        for parameter in (*self._halves, *self._named.values()):
            parameter.grad = None

    @torch.no_grad()
    def copy_back(self) -> None:
        if self._halves:
            halves: list[Tensor] = [*self._halves]
            torch._foreach_copy_(halves, [*self._named.values()])


def cast_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast parameters alone; `model.to(dtype)` would round buffers too."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def make_optimizer(model: Named, *, lr: float, betas: tuple[float, float], weight_decay: float) -> AdamW:
    """Return AdamW. Weight decay applies to matrices, not to norms, biases and other vectors."""
    parameters = [parameter for _, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = AdamW([group for group in groups if group["params"]], lr=lr, betas=betas, fused=True)
    # allocated now, so that a shortage of memory shows before the first step
    for parameter in parameters:
        optimizer.state[parameter] = {
            "step": torch.zeros((), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def warmup(lr: float, *, steps: int) -> Schedule:
    """Rise linearly to lr over `steps`, then stay."""
    return lambda step: lr * min(1.0, (step + 1) / steps) if steps else lr


def warmup_cosine(lr: float, *, warmup_steps: int, steps: int) -> Schedule:
    """Warm up, then fall to 0 by half a cosine over the rest of `steps`."""
    rising = warmup(lr, steps=warmup_steps)

    def rate(step: int) -> float:
        share = (step - warmup_steps) / max(1, steps - warmup_steps)
        return rising(step) * 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, share))))

    return rate
