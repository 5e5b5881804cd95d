"""Loss per token, in pure torch. Promise: no reduction happens here; the batch's weights alone decide what a token counts.

A missing logprob is NaN and stays NaN (the trainer refuses such a step): it is never taken for a ratio of 1. r = p / p_base.

    clipped      -min(r A, clip(r, 1 - low, 1 + high) A)                     PPO (1707.06347), sides apart as in DAPO (2503.14476)
    dual clip    -max(that objective, c A) where A < 0                       (1912.09729): a bad action's exploding r is bounded
    sequence r   s = exp(mean over the sequence's tokens of log r)           GSPO (2507.18071)
    CISPO        -stopgrad(clip(r, 1 - low, 1 + high)) A log p               (2506.13585): every token keeps a gradient
    REINFORCE    -A log p, or -r A around the behaviour policy
    importance   w = min(p_old / p_behaviour, cap), without gradient         truncated importance sampling, per token or per sequence
"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""exp of more is useless as a ratio, and an infinite one would turn the clipped branch's zero gradient into NaN."""


def ratios(logprobs: Tensor, base: Tensor) -> Tensor:
    """p / p_base per token, with the gradient of p."""
    return torch.exp((logprobs - base).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def sequence_ratios(logprobs: Tensor, base: Tensor, *, rows: Tensor) -> Tensor:
    """The geometric mean of the ratios of a token's sequence, at every token of it. `rows[t]` is the sequence of token t.

    Per sequence, also where a trajectory forked into several: they may lie in different microbatches.
    """
    logs = logprobs - base
    means = _row_sums(logs, rows) / _row_sums(torch.ones_like(logs), rows)
    return torch.exp(means.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))[rows]


def clipped_surrogate(ratio: Tensor, advantages: Tensor, *, low: float, high: float, dual: float = 0.0) -> Tensor:
    """-min(r A, clip(r, 1 - low, 1 + high) A), never above -dual x A where A < 0 and `dual` is set."""
    objective = torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    if dual:
        objective = torch.where(advantages < 0, torch.maximum(objective, dual * advantages), objective)
    return -objective


def clipped_share(ratio: Tensor, advantages: Tensor, *, low: float, high: float) -> Tensor:
    """1 where the clip took a token's gradient away, else 0."""
    above = (ratio > 1 + high) & (advantages > 0)
    below = (ratio < 1 - low) & (advantages < 0)
    return (above | below).to(ratio.dtype)


def dual_clipped_share(ratio: Tensor, advantages: Tensor, *, dual: float) -> Tensor:
    return ((ratio > dual) & (advantages < 0)).to(ratio.dtype)


def cispo(logprobs: Tensor, ratio: Tensor, advantages: Tensor, *, low: float, high: float) -> Tensor:
    """The clipped ratio is a weight without gradient. `high` is an offset from 1, not an absolute cap; low = 1 leaves that side open."""
    return -ratio.detach().clamp(1 - low, 1 + high) * advantages * logprobs


def importance_weights(old: Tensor, behaviour: Tensor, *, cap: float) -> Tensor:
    """min(p_old / p_behaviour, cap) per token, without gradient (truncated importance sampling)."""
    return torch.exp((old - behaviour).detach()).clamp(max=cap)


def sequence_importance_weights(old: Tensor, behaviour: Tensor, *, cap: float, rows: Tensor) -> Tensor:
    """min(product of p_old / p_behaviour over the sequence, cap), at every token of it. Grows or vanishes with its length."""
    return torch.exp(_row_sums((old - behaviour).detach(), rows)).clamp(max=cap)[rows]


def _row_sums(values: Tensor, rows: Tensor) -> Tensor:
    sums = torch.zeros(int(rows.max()) + 1 if len(rows) else 0, dtype=values.dtype, device=values.device)
    return sums.index_add(0, rows, values)
