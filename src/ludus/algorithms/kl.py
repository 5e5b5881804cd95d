"""Estimators of the KL divergence to a frozen reference, per sampled token (Schulman, 2020).

With x = log p_ref - log p and tokens drawn from p, each has the mean KL(p || p_ref):

    k1   -x                  can be negative. As a loss term its gradient has mean 0, so it is
                             subtracted from the advantage instead
    k2   x^2 / 2             biased, but its gradient is an unbiased one of the KL
    k3   exp(x) - x - 1      never negative, unbiased; its gradient is that of KL(p_ref || p)

On tokens of another policy all three need the importance weight; the caller multiplies it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ludus.algorithms.losses import MAX_LOG_RATIO
from ludus.config import Section
from ludus.config.pieces import piece

if TYPE_CHECKING:
    from torch import Tensor

MAX_K3 = 10.0
"""As in AgentRL (2510.04206): one token must not outweigh a batch."""


class KlOptions(Section):
    kl_weight: float = Field(gt=0)
    """Weight of the KL divergence."""


@piece("kl", "none")
def zero(logprobs: Tensor, reference: Tensor, options: Section) -> Tensor:
    return logprobs.new_zeros(len(logprobs))


@piece("kl", "k1")
def k1(logprobs: Tensor, reference: Tensor, options: KlOptions) -> Tensor:
    return -(reference - logprobs)


@piece("kl", "k2")
def k2(logprobs: Tensor, reference: Tensor, options: KlOptions) -> Tensor:
    return (reference - logprobs) ** 2 / 2


@piece("kl", "k3")
def k3(logprobs: Tensor, reference: Tensor, options: KlOptions) -> Tensor:
    x = reference - logprobs
    return (x.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp() - x - 1).clamp(max=MAX_K3)
