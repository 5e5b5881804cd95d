"""Loss per token, in pure torch. Promise: no reduction happens here; the batch's weights alone decide what a token counts.

A missing logprob is NaN and stays NaN (the trainer refuses such a step): it is never taken for a ratio of 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""exp of more is useless as a ratio, and an infinite one would turn the clipped branch's zero gradient into NaN."""


def ratios(logprobs: Tensor, centre: Tensor) -> Tensor:
    """p / p_centre per token, with the gradient of p."""
    return torch.exp((logprobs - centre).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def clipped_surrogate(ratio: Tensor, advantages: Tensor, *, low: float, high: float) -> Tensor:
    """-min(r A, clip(r, 1 - low, 1 + high) A): PPO's clip with its two sides apart (DAPO's clip-higher)."""
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def clipped_share(ratio: Tensor, advantages: Tensor, *, low: float, high: float) -> Tensor:
    """1 where the clip took a token's gradient away, else 0."""
    above = (ratio > 1 + high) & (advantages > 0)
    below = (ratio < 1 - low) & (advantages < 0)
    return (above | below).to(ratio.dtype)


def importance_weights(old: Tensor, behaviour: Tensor, *, cap: float) -> Tensor:
    """min(p_old / p_behaviour, cap) per token, without gradient (truncated importance sampling)."""
    return torch.exp((old - behaviour).detach()).clamp(max=cap)
