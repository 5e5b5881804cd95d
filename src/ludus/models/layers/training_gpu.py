"""The operations of training layers on a GPU, with their gradients. Promise: as in training.py.

Imported on CUDA devices only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ludus.models.kernels import inference as kernels
from ludus.models.kernels import training as training_kernels


class AddRmsNorm(torch.autograd.Function):
    """(x + added, its norm)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        summed, normed = kernels.add_rms_norm(x, added, weight, eps=eps)
        ctx.save_for_backward(summed, weight)
        ctx.eps = eps
        return summed, normed

    @staticmethod
    def backward(ctx: Any, by_summed: Tensor, by_normed: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        of_summed, of_weight = training_kernels.rms_norm_backward(
            by_normed, *ctx.saved_tensors, eps=ctx.eps, by_summed=by_summed, weighs=ctx.needs_input_grad[2]
        )
        return of_summed, of_summed, of_weight, None


class Projected(torch.autograd.Function):
    """x W^T + b, where W and b are those of several projections, concatenated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, *parts: Tensor) -> Tensor:
        """`parts`: the weights, then biases, in `weight` and `bias`; they get the gradients."""
        ctx.save_for_backward(x, weight)
        ctx.sizes = _sizes(parts, has_bias=bias is not None)
        ctx.has_bias = bias is not None
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        dx, parts = _of_projections(dy, *ctx.saved_tensors, sizes=ctx.sizes, has_bias=ctx.has_bias)
        return dx, None, None, *parts


class Heads(torch.autograd.Function):
    """As `Projected`, split into rotated queries and keys, and values (1, tokens, heads, dim)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        heads: list[int],
        *parts: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(x, weight, cos, sin)
        ctx.heads, ctx.has_bias, ctx.sizes = heads, bias is not None, _sizes(parts, has_bias=bias is not None)
        out = torch.nn.functional.linear(x, weight, bias).view(*x.shape[:-1], sum(heads), -1)
        rotated = out[0, :, : heads[0] + heads[1]]
        kernels.rotate(rotated, cos[0], sin[0], out=rotated)
        query, key, value = out.split(heads, dim=2)
        return query, key, value

    @staticmethod
    def backward(ctx: Any, *by: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, cos, sin = ctx.saved_tensors
        dy = torch.empty((1, x.shape[1], sum(ctx.heads), by[0].shape[3]), dtype=x.dtype, device=x.device)
        query, key, value = dy[0].split(ctx.heads, dim=1)
        for slope, out in zip(by[:2], (query, key), strict=True):
            kernels.rotate(slope[0].contiguous(), cos[0], sin[0], back=True, out=out)
        value.copy_(by[2][0])
        dx, parts = _of_projections(dy.flatten(2), x, weight, sizes=ctx.sizes, has_bias=ctx.has_bias)
        return dx, None, None, None, None, None, *parts


def _sizes(parts: tuple[Tensor, ...], *, has_bias: bool) -> list[int]:
    return [len(part) for part in (parts[: len(parts) // 2] if has_bias else parts)]


def _of_projections(
    dy: Tensor, x: Tensor, weight: Tensor, *, sizes: list[int], has_bias: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The gradients of x, and of the projections' weights, then biases."""
    flat = dy.reshape(-1, dy.shape[-1])
    dw = flat.t() @ x.reshape(-1, x.shape[-1])
    db = flat.sum(0).split(sizes) if has_bias else ()
    return (flat @ weight).view_as(x), (*dw.split(sizes), *db)


class SiluTimes(torch.autograd.Function):
    """silu(gate) * up, of two tensors or of the halves of one."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        ctx.save_for_backward(*given)
        gate, up = _gate_and_up(given)
        return kernels.silu_times(gate, up).view(*given[0].shape[:-1], gate.shape[-1])

    @staticmethod
    def backward(ctx: Any, by_out: Tensor) -> tuple[Tensor, ...]:
        given = ctx.saved_tensors
        found = tuple(torch.empty_like(each) for each in given)
        training_kernels.silu_times_backward(by_out, *_gate_and_up(given), into=_gate_and_up(found))
        return found


def _gate_and_up(given: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """(tokens, size) each."""
    flat = [each.view(-1, each.shape[-1]) for each in given]
    gate, up = flat if len(flat) == 2 else flat[0].chunk(2, dim=-1)
    return gate, up
