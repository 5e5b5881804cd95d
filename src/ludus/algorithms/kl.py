"""How far the policy is from a frozen reference, per sampled token (Schulman, "Approximating KL divergence", 2020).

With x = log p_ref - log p and tokens drawn from p, each has the mean KL(p || p_ref):

    k1   -x                  also negative; no use as a loss term: its gradient has mean 0. Here it is taken off the advantage instead
    k2   x^2 / 2             biased, but its gradient is an unbiased one of the KL
    k3   exp(x) - x - 1      never negative, unbiased; its gradient is that of KL(p_ref || p)

On tokens of another speaker all three need the importance weight in front; the caller multiplies it where it has one.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ludus.algorithms.losses import MAX_LOG_RATIO

Estimator = Literal["k1", "k2", "k3"]
MAX_K3 = 10.0
"""As in AgentRL (2510.04206): one token that the reference finds impossible must not outweigh a batch."""


def estimate(logprobs: Tensor, reference: Tensor, *, estimator: Estimator) -> Tensor:
    x = reference - logprobs
    if estimator == "k1":
        return -x
    if estimator == "k2":
        return x**2 / 2
    return (torch.exp(x.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)) - x - 1).clamp(max=MAX_K3)
