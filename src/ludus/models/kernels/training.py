"""Triton kernels of training layers. Promise: sums are float32 and results are rounded once; a
backward pass recomputes what it needs from what it reads anyway.

Imported on CUDA devices only; the forward passes are in inference.py.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 1024
"""Programs that share the rows of a norm, each with its own sum for the weight's gradient."""
BLOCK = 1024


@triton.jit
def _rms_norm_backward(
    of_x, of_weight, by_normed, by_summed, x, weight, eps, rows, each, size,
    ADDS: tl.constexpr, WEIGHS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < size
    scales = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    collected = tl.zeros([BLOCK], tl.float32)
    for number in range(0, each):
        row = program.to(tl.int64) * each + number
        real = inside & (row < rows)
        here = row * size + at
        wide = tl.load(x + here, mask=real, other=0.0).to(tl.float32)
        slope = tl.load(by_normed + here, mask=real, other=0.0).to(tl.float32)
        inverse = tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
        normed = wide * inverse
        if WEIGHS:
            collected += slope * normed
        slope *= scales
        gradient = inverse * (slope - normed * (tl.sum(slope * normed, 0) / size))
        if ADDS:
            gradient += tl.load(by_summed + here, mask=real, other=0.0).to(tl.float32)
        tl.store(of_x + here, gradient.to(of_x.dtype.element_ty), mask=real)
    if WEIGHS:
        tl.store(of_weight + program * size + at, collected, mask=inside)


def rms_norm_backward(
    by_normed: Tensor, x: Tensor, weight: Tensor, *, eps: float, by_summed: Tensor | None = None, weighs: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Gradients of x and, if `weighs`, of the weight. `by_summed` is added to that of x."""
    size = x.shape[-1]
    rows = x.numel() // size
    each = triton.cdiv(rows, PROGRAMS)
    programs = triton.cdiv(rows, each)
    of_x = torch.empty_like(x)
    sums = torch.empty((programs, size) if weighs else (1,), dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(size)
    added = x if by_summed is None else by_summed.contiguous()
    _rms_norm_backward[(programs,)](
        of_x, sums, by_normed.contiguous(), added, x, weight, eps, rows, each, size,
        ADDS=by_summed is not None, WEIGHS=weighs, BLOCK=block, num_warps=4 if block <= 1024 else 8,
    )  # fmt: skip
    return of_x, sums.sum(0).to(weight.dtype) if weighs else None


@triton.jit
def _silu_times_backward(of_gate, of_up, by_out, gate, up, stride, size, BLOCK: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    here = row * stride + at
    slope = tl.load(by_out + row * size + at, mask=inside, other=0.0).to(tl.float32)
    x = tl.load(gate + here, mask=inside, other=0.0).to(tl.float32)
    other = tl.load(up + here, mask=inside, other=0.0).to(tl.float32)
    share = tl.sigmoid(x)
    kind = of_gate.dtype.element_ty
    tl.store(of_gate + here, (slope * other * share * (1.0 + x * (1.0 - share))).to(kind), mask=inside)
    tl.store(of_up + here, (slope * x * share).to(kind), mask=inside)


def silu_times_backward(by_out: Tensor, gate: Tensor, up: Tensor, *, into: tuple[Tensor, Tensor]) -> None:
    """Writes the gradients of gate and up, in their layout."""
    tokens, size = gate.shape
    assert all(each.stride() == gate.stride() for each in (up, *into)), "gradients lie as gate and up do"
    _silu_times_backward[(tokens, triton.cdiv(size, BLOCK))](
        *into, by_out.contiguous(), gate, up, gate.stride(0), size, BLOCK=BLOCK
    )
