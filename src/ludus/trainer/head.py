"""From hidden states to logprobs and entropies, piece by piece.

Promise: the logits of one piece exist at a time, forward and backward. The backward pass computes
them again, unless there is memory to keep them all.

    logits = hidden W^T + b          z = logits / temperature
    logprob = z[target] - lse(z)     entropy = lse(z) - sum softmax(z) z
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear


def logprobs_in_pieces(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    temperature: float,
    rows: int,
    kept: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return logprobs and entropies, (M,) each, in float32, both with gradient.

    hidden (M, width), weight (vocabulary, width), targets (M,). Pieces are even and have at most
    `rows` rows; the logits of up to `kept` rows are kept for the backward pass."""
    rows = -(-len(hidden) // max(1, -(-len(hidden) // rows)))
    keeps = len(hidden) <= kept and torch.is_grad_enabled()
    found: tuple[Tensor, Tensor] = _Pieces.apply(hidden, weight, bias, targets, temperature, rows, keeps)  # type: ignore[no-untyped-call]
    return found


class _Pieces(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        rows: int,
        keeps: bool,
    ) -> tuple[Tensor, Tensor]:
        found, ctx.kept = [], []
        statistics = _kernels().statistics if hidden.is_cuda else _statistics
        for part, own in zip(hidden.split(rows), targets.split(rows), strict=True):
            logits = linear(part, weight, bias)
            found.append(statistics(logits, own, temperature=temperature))
            ctx.kept += [logits] if keeps else []
        logprobs, sums, entropies = (torch.cat(each) for each in zip(*found, strict=True))
        ctx.save_for_backward(hidden, weight, bias, targets, sums, entropies)
        ctx.temperature, ctx.rows = temperature, rows
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, by_logprob: Tensor | None, by_entropy: Tensor | None) -> tuple[Any, ...]:
        hidden, weight, bias, targets, sums, entropies = ctx.saved_tensors
        if by_logprob is None:
            by_logprob = torch.zeros_like(sums)
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        of_hidden = torch.empty_like(hidden) if wants_hidden else None
        # a head that LoRA has frozen needs no gradient
        of_weight = torch.zeros_like(weight) if wants_weight else None
        of_bias = torch.zeros_like(bias) if wants_bias else None
        # each is overwritten with its gradient, so a second backward pass is impossible
        kept, ctx.kept = ctx.kept, []
        gradients = _kernels().gradients_in_place if hidden.is_cuda else _gradients
        for first in range(0, len(hidden), ctx.rows):
            own = slice(first, first + ctx.rows)
            gradient = gradients(
                kept.pop(0) if kept else linear(hidden[own], weight, bias),
                targets[own],
                sums=sums[own],
                entropies=entropies[own],
                by_logprob=by_logprob[own],
                by_entropy=None if by_entropy is None else by_entropy[own],
                temperature=ctx.temperature,
            )
            if of_hidden is not None:
                torch.mm(gradient, weight, out=of_hidden[own])
            if of_weight is not None:
                of_weight.addmm_(gradient.t(), hidden[own])
            if of_bias is not None:
                of_bias += gradient.sum(dim=0)
            del gradient  # before the next piece's logits are computed
        return of_hidden, of_weight, of_bias, None, None, None, None


def _kernels() -> Any:
    from ludus.models.kernels import head  # needs Triton

    return head


def _statistics(logits: Tensor, targets: Tensor, *, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    z = logits.float() / temperature
    sums = z.logsumexp(dim=-1)
    chosen = z.gather(1, targets.unsqueeze(1)).squeeze(1)
    logprobs = z.sub_(sums.unsqueeze(1))
    return chosen - sums, sums, -(logprobs.exp() * logprobs).sum(dim=-1)


def _gradients(
    logits: Tensor,
    targets: Tensor,
    *,
    sums: Tensor,
    entropies: Tensor,
    by_logprob: Tensor,
    by_entropy: Tensor | None,
    temperature: float,
) -> Tensor:
    relative = (logits.float() / temperature).sub_(sums.unsqueeze(1))
    shares = relative.exp()
    slopes = -by_logprob.unsqueeze(1)
    if by_entropy is not None:
        slopes = slopes - by_entropy.unsqueeze(1) * relative.add_(entropies.unsqueeze(1))
    gradient = shares.mul_(slopes)
    gradient.scatter_add_(1, targets.unsqueeze(1), by_logprob.unsqueeze(1).to(gradient.dtype))
    return (gradient / temperature).to(logits.dtype)
