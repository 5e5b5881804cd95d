"""What lean layers compute on a GPU, with the gradients. Promise: as models/lean.py's.

Imported on CUDA devices only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ludus.models import kernels, lean_kernels


class AddRmsNorm(torch.autograd.Function):
    """(x + added, that normed)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        summed, normed = kernels.add_rms_norm(x, added, weight, eps=eps)
        ctx.save_for_backward(summed, weight)
        ctx.eps = eps
        return summed, normed

    @staticmethod
    def backward(ctx: Any, by_summed: Tensor, by_normed: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:  # type: ignore[override]
        of_summed, of_weight = lean_kernels.rms_norm_backward(
            by_normed, *ctx.saved_tensors, eps=ctx.eps, by_summed=by_summed, weighs=ctx.needs_input_grad[2]
        )
        return of_summed, of_summed, of_weight, None


class Projected(torch.autograd.Function):
    """x W^T + b, where W and b are those of several projections, one below the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, *parts: Tensor) -> Tensor:
        """`parts`: weights, then biases, of which `weight` and `bias` are made; they get the gradients."""
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        ctx.sizes = [len(part) for part in (parts[: len(parts) // 2] if bias is not None else parts)]
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        flat = dy.reshape(-1, dy.shape[-1])
        dw = flat.t() @ x.reshape(-1, x.shape[-1])
        db = flat.sum(0).split(ctx.sizes) if ctx.has_bias else ()
        return (flat @ weight).view_as(x), None, None, *dw.split(ctx.sizes), *db


class SiluTimes(torch.autograd.Function):
    """silu(gate) * up, of two tensors or of the halves of one."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        ctx.save_for_backward(*given)
        gate, up = _gate_and_up(given)
        return kernels.silu_times(gate, up).view(*given[0].shape[:-1], gate.shape[-1])

    @staticmethod
    def backward(ctx: Any, by_out: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        given = ctx.saved_tensors
        found = tuple(torch.empty_like(each) for each in given)
        lean_kernels.silu_times_backward(by_out, *_gate_and_up(given), into=_gate_and_up(found))
        return found


def _gate_and_up(given: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """(tokens, size) each."""
    flat = [each.view(-1, each.shape[-1]) for each in given]
    gate, up = flat if len(flat) == 2 else flat[0].chunk(2, dim=-1)
    return gate, up


class RotateTogether(torch.autograd.Function):
    """(1, tokens, all heads, head_dim) -> queries and keys, rotated, and values."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, heads: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        ctx.heads = heads
        rotated = kernels.rotate(x[0, :, : heads[0] + heads[1]], cos[0], sin[0])[None]
        query, key = rotated.split(heads[:2], dim=2)
        return query, key, x[:, :, heads[0] + heads[1] :]

    @staticmethod
    def backward(ctx: Any, *by: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        dx = torch.empty((1, by[0].shape[1], sum(ctx.heads), by[0].shape[3]), dtype=by[0].dtype, device=by[0].device)
        query, key, value = dx[0].split(ctx.heads, dim=1)
        for slope, out in zip(by[:2], (query, key), strict=True):
            kernels.rotate(slope[0].contiguous(), cos[0], sin[0], back=True, out=out)
        value.copy_(by[2][0])
        return dx, None, None, None
