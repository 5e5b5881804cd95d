"""Triton kernels for the loss over a large vocabulary. Promise: logits are read once for their
statistics and once to become their own gradient; nothing else of their size is allocated.

Imported on CUDA devices only. z = logits / temperature, lse = log sum exp z, H = lse - sum p z:
    d logprob / dz_j = [j = target] - p_j          dH / dz_j = -p_j (z_j - lse + H)
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def _statistics(logits, targets, logprobs, sums, entropies, vocabulary, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * vocabulary
    highest = -float("inf")
    total = 0.0  # of exp(z - highest)
    weighted = 0.0  # of exp(z - highest) * z
    for first in range(0, vocabulary, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < vocabulary
        z = tl.load(start + at, mask=inside, other=-float("inf")).to(tl.float32) * scale
        higher = tl.maximum(highest, tl.max(z, axis=0))
        shrunk = tl.exp(highest - higher)
        share = tl.exp(z - higher)
        total = total * shrunk + tl.sum(share, axis=0)
        weighted = weighted * shrunk + tl.sum(tl.where(inside, share * z, 0.0), axis=0)
        highest = higher
    lse = highest + tl.log(total)
    chosen = tl.load(start + tl.load(targets + row)).to(tl.float32) * scale
    tl.store(logprobs + row, chosen - lse)
    tl.store(sums + row, lse)
    tl.store(entropies + row, lse - weighted / total)


@triton.jit
def _gradients(
    logits, targets, sums, entropies, by_logprob, by_entropy, vocabulary, scale,
    ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < vocabulary
    place = logits + row * vocabulary + at
    relative = tl.load(place, mask=inside, other=-float("inf")).to(tl.float32) * scale - tl.load(sums + row)
    share = tl.exp(relative)
    slope = tl.load(by_logprob + row)
    hit = at == tl.load(targets + row)
    gradient = tl.where(hit, slope, 0.0) - slope * share
    if ENTROPY:
        gradient -= tl.load(by_entropy + row) * share * (relative + tl.load(entropies + row))
    tl.store(place, (gradient * scale).to(logits.dtype.element_ty), mask=inside)


def statistics(logits: Tensor, targets: Tensor, *, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Logprobs of the targets, log sums and entropies, (M,) each, in float32."""
    rows, vocabulary = logits.shape
    assert logits.is_contiguous(), "a row's logits lie side by side"
    logprobs, sums, entropies = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(3))
    _statistics[(rows,)](
        logits, targets, logprobs, sums, entropies, vocabulary, 1 / temperature, BLOCK=BLOCK, num_warps=8
    )
    return logprobs, sums, entropies


def gradients_in_place(
    logits: Tensor,
    targets: Tensor,
    *,
    sums: Tensor,
    entropies: Tensor,
    by_logprob: Tensor,
    by_entropy: Tensor | None,
    temperature: float,
) -> Tensor:
    """`logits`, overwritten with their gradient."""
    rows, vocabulary = logits.shape
    assert logits.is_contiguous(), "a row's logits lie side by side"
    slopes = [each if each is None else each.contiguous() for each in (by_logprob, by_entropy)]
    by_entropy_or_any = slopes[0] if slopes[1] is None else slopes[1]
    _gradients[(rows, triton.cdiv(vocabulary, BLOCK))](
        logits, targets, sums, entropies, slopes[0], by_entropy_or_any, vocabulary, 1 / temperature,
        ENTROPY=by_entropy is not None, BLOCK=BLOCK, num_warps=8,
    )  # fmt: skip
    return logits
