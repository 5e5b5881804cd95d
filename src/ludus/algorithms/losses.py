"""Loss per token. Promise: nothing is reduced; a batch's weights decide how much a token counts.

A missing logprob is NaN and stays NaN (the trainer refuses such a step): it is never taken for a
ratio of 1. r = p / p_base, with p_base by `ratio_base`.

    clip         -min(r A, clip(r, 1 - low, 1 + high) A)         PPO (1707.06347), DAPO (2503.14476)
    dual clip    -max(that objective, c A) where A < 0           (1912.09729), bounds an exploding r
    sequence r   s = exp(mean over the sequence of log r)        GSPO (2507.18071)
    cispo        -stopgrad(clip(r, 1 - low, 1 + high)) A log p   CISPO (2506.13585)
    reinforce    -A log p, or -r A with ratio_base = behaviour
    old          times w = min(p_old / p_behaviour, cap), without gradient (2110.00641)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ludus.algorithms.algorithm import Tokens
from ludus.config import Section
from ludus.config.pieces import loss, piece

if TYPE_CHECKING:
    from torch import Tensor

Diagnostics = dict[str, "Tensor"]
MAX_LOG_RATIO = 20.0
"""exp of more is useless as a ratio; infinity would make the clipped branch's gradient NaN."""


class LossOptions(Section):
    ratio_base: str = "old"


class CispoOptions(LossOptions):
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """The ratio is clipped at 1 - clip_low. 1 leaves this side open."""
    clip_high: float = Field(default=0.2, ge=0)
    """The ratio is clipped at 1 + clip_high."""


class ClipOptions(CispoOptions):
    ratio: Literal["token", "sequence"] = "token"
    """token: one ratio per token. sequence: the geometric mean over the sequence (GSPO)."""
    dual_clip: float = Field(default=0.0, ge=0)
    """Bounds the loss of a token with negative advantage at this multiple of it (3). 0: off."""

    def problems(self) -> Iterator[str]:
        if 0 < self.dual_clip <= 1 + self.clip_high:
            yield f"algorithm.dual_clip is {self.dual_clip}, inside the clip at {1 + self.clip_high:g}; 3 is usual"


@loss("clip")
def clip(tokens: Tokens, options: ClipOptions) -> tuple[Tensor, Diagnostics]:
    base, advantages = base_of(tokens, options), tokens.advantages
    ratio = ratios(tokens.logprobs, base, rows=_rows(tokens, options.ratio))
    low, high, dual = options.clip_low, options.clip_high, options.dual_clip
    detached = ratio.detach()
    diagnostics = {"ratio": detached, "clipped": clipped_share(detached, advantages, low=low, high=high)}
    if dual:
        diagnostics["dual_clipped"] = dual_clipped_share(detached, advantages, dual=dual)
    return clipped_surrogate(ratio, advantages, low=low, high=high, dual=dual), diagnostics


@loss("cispo")
def cispo_loss(tokens: Tokens, options: CispoOptions) -> tuple[Tensor, Diagnostics]:
    ratio = ratios(tokens.logprobs, base_of(tokens, options))
    low, high, detached = options.clip_low, options.clip_high, ratio.detach()
    outside = (detached > 1 + high) | (detached < 1 - low)
    diagnostics = {"ratio": detached, "clipped": outside.to(ratio.dtype)}
    return cispo(tokens.logprobs, ratio, tokens.advantages, low=low, high=high), diagnostics


@loss("reinforce")
def reinforce(tokens: Tokens, options: LossOptions) -> tuple[Tensor, Diagnostics]:
    ratio = ratios(tokens.logprobs, base_of(tokens, options))
    likelihood = tokens.logprobs if options.ratio_base == "old" else ratio
    return -tokens.advantages * likelihood, {"ratio": ratio.detach()}


class OldOptions(Section):
    importance: Literal["token", "sequence"] = "token"
    """Importance weight per token, or the product over the sequence."""
    importance_cap: float = Field(default=2.0, ge=0)
    """Importance weights are min(p_old / p_behaviour, cap): they correct for staleness and for the
    engine's rounding. 0 disables them."""

    def problems(self) -> Iterator[str]:
        if self.importance != "token" and not self.importance_cap:
            yield "algorithm.importance counts only with an importance_cap; leave it out"


class BehaviourOptions(Section):
    importance_cap: float = 0.0
    """0: with the behaviour policy as the base, the ratio itself is the correction."""

    def problems(self) -> Iterator[str]:
        if self.importance_cap:
            yield (
                f"algorithm.importance_cap is {self.importance_cap}, which counts only with ratio_base 'old'; with "
                "'behaviour' the ratio itself is the correction. Leave it out"
            )


@piece("ratio_base", "old")
def old_policy(tokens: Tokens, options: OldOptions) -> Tensor | None:
    """The importance weights, or None where the loss has none."""
    cap, rows = options.importance_cap, _rows(tokens, options.importance)
    return importance_weights(tokens.old_logprobs, tokens.behaviour_logprobs, cap=cap, rows=rows) if cap else None


@piece("ratio_base", "behaviour")
def behaviour_policy(tokens: Tokens, options: BehaviourOptions) -> Tensor | None:
    return None


def base_of(tokens: Tokens, options: LossOptions) -> Tensor:
    return tokens.old_logprobs if options.ratio_base == "old" else tokens.behaviour_logprobs


def ratios(logprobs: Tensor, base: Tensor, *, rows: Tensor | None = None) -> Tensor:
    """p / p_base per token, with the gradient of p. With `rows`, the sequence of each token: the
    geometric mean over it, not over the trajectory, which may be in several microbatches."""
    logs = logprobs - base
    if rows is not None:
        logs = _row_sums(logs, rows) / _row_sums(logs.new_ones(len(logs)), rows)
    ratio = logs.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return ratio if rows is None else ratio[rows]


def clipped_surrogate(ratio: Tensor, advantages: Tensor, *, low: float, high: float, dual: float = 0.0) -> Tensor:
    """-min(r A, clip(r, 1 - low, 1 + high) A); if `dual` is set, at most -dual x A where A < 0."""
    objective = (ratio * advantages).minimum(ratio.clamp(1 - low, 1 + high) * advantages)
    if dual:
        objective = objective.maximum(dual * advantages).where(advantages < 0, objective)
    return -objective


def clipped_share(ratio: Tensor, advantages: Tensor, *, low: float, high: float) -> Tensor:
    """1 where the clip removed a token's gradient, else 0."""
    above = (ratio > 1 + high) & (advantages > 0)
    below = (ratio < 1 - low) & (advantages < 0)
    return (above | below).to(ratio.dtype)


def dual_clipped_share(ratio: Tensor, advantages: Tensor, *, dual: float) -> Tensor:
    return ((ratio > dual) & (advantages < 0)).to(ratio.dtype)


def cispo(logprobs: Tensor, ratio: Tensor, advantages: Tensor, *, low: float, high: float) -> Tensor:
    """The clipped ratio is a weight without gradient, so every token keeps a gradient."""
    return -ratio.detach().clamp(1 - low, 1 + high) * advantages * logprobs


def importance_weights(old: Tensor, behaviour: Tensor, *, cap: float, rows: Tensor | None = None) -> Tensor:
    """min(p_old / p_behaviour, cap) per token, without gradient (truncated importance sampling).
    With `rows`: of the product over the token's sequence."""
    logs = (old - behaviour).detach()
    if rows is None:
        return logs.exp().clamp(max=cap)
    return _row_sums(logs, rows).exp().clamp(max=cap)[rows]


def _rows(tokens: Tokens, per: Literal["token", "sequence"]) -> Tensor | None:
    if per == "token":
        return None
    assert tokens.rows is not None, "a sequence ratio needs to know which sequence a token belongs to"
    return tokens.rows


def _row_sums(values: Tensor, rows: Tensor) -> Tensor:
    return values.new_zeros(int(rows.max()) + 1 if len(rows) else 0).index_add(0, rows, values)
