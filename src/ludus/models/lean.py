"""A decoder's layers with fewer passes over memory, for training on a CPU. Promise: the numbers and gradients of Transformers' own modules,
up to rounding.

Beside matrix products and attention, a small model's step is bound by elementwise passes over its activations. Norms and rotary
embeddings get backward passes written by hand, and the last layer computes, beside keys and values, only the rows that predict
something: nothing reads the others. Layers of the Llama kind are recognised by their parts; classes are swapped, so that parameters
keep their names. Whoever makes a model lean compares it with its own forward pass (trainer/forward.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from ludus.models.fused import recognised, swapped


def lean(model: PreTrainedModel) -> bool:
    """Swaps what it recognises, in place; False, and nothing changed, where a layer is of another kind, or on a GPU."""
    decoder: Any = model.base_model
    layers = getattr(decoder, "layers", None)
    on_cpu = model.device.type == "cpu" and model.dtype == torch.float32
    if not on_cpu or not layers or not all(recognised(layer) for layer in layers):
        return False
    for layer in layers:
        layer.__class__ = swapped(type(layer), _Layer)
        layer.self_attn.__class__ = swapped(type(layer.self_attn), _Attention)
    for norm in [module for module in decoder.modules() if hasattr(module, "variance_epsilon")]:
        norm.__class__ = swapped(type(norm), _Norm)
    layers[-1].reads_rows = True
    return True


def is_lean(model: PreTrainedModel) -> bool:
    layers: Any = getattr(model.base_model, "layers", None)
    return bool(layers) and isinstance(layers[0], _Layer)


class _Layer(nn.Module):
    reads_rows = False

    def forward(self, hidden_states: Tensor, rows: Tensor | None = None, **passed: Any) -> Tensor:
        """`rows`: those that anybody reads of the last layer; of any other layer all are read."""
        this: Any = self
        attended = this.self_attn.attended(this.input_layernorm(hidden_states), **passed)
        if self.reads_rows and rows is not None:
            hidden_states, attended = (x.index_select(1, rows) for x in (hidden_states, attended))
        summed = hidden_states + this.self_attn.o_proj(attended)
        out: Tensor = summed + this.mlp(this.post_attention_layernorm(summed))
        return out


class _Attention(nn.Module):
    def attended(
        self,
        hidden: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        **passed: Any,
    ) -> Tensor:
        """(1, tokens, heads * head_dim), before the projection out."""
        this: Any = self
        shape = (*hidden.shape[:-1], -1, this.head_dim)
        query, key, value = (projection(hidden).view(shape) for projection in (this.q_proj, this.k_proj, this.v_proj))
        if hasattr(this, "q_norm"):
            query, key = this.q_norm(query), this.k_norm(key)
        cos, sin = position_embeddings
        query, key = (_rotate(x, cos.unsqueeze(2), sin.unsqueeze(2)) for x in (query, key))
        attend = AttentionInterface()[this.config._attn_implementation]
        window = getattr(this, "sliding_window", None)
        out: Tensor = attend(
            this,
            *(x.transpose(1, 2) for x in (query, key, value)),
            attention_mask,
            scaling=this.scaling,
            sliding_window=window,
            **passed,
        )[0]
        return out.reshape(*hidden.shape[:-1], -1)


class _Norm(nn.Module):
    def forward(self, hidden_states: Tensor) -> Tensor:
        this: Any = self
        normed: Tensor = _RmsNorm.apply(hidden_states, this.weight, this.variance_epsilon)  # type: ignore[no-untyped-call]
        return normed


class _RmsNorm(torch.autograd.Function):
    """y = w x r, r = 1 / sqrt(mean(x^2) + eps).  dx = r (dy w - x r^2 mean(dy w x)),  dw = sum over rows of dy x r."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        r = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, r)
        normed: Tensor = (x * r).mul_(weight)
        return normed

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, r = ctx.saved_tensors
        products = dy * x
        slope = (products @ weight).unsqueeze(-1).mul_(r.pow(3)).div_(-x.shape[-1])
        dw = r.flatten() @ products.reshape(-1, x.shape[-1])
        dx = (dy * weight).mul_(r).addcmul_(x, slope)
        return dx, dw, None


class _Rotate(torch.autograd.Function):
    """x cos + rotate_half(x) sin over (..., head_dim); its transpose is the rotation by the opposite angle."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(x, cos, sin, sign=1)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotated(dy, cos, sin, sign=-1), None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    rotated: Tensor = _Rotate.apply(x, cos, sin)  # type: ignore[no-untyped-call]
    return rotated


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, *, sign: int) -> Tensor:
    half = x.shape[-1] // 2
    out = x * cos
    out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-sign)
    out[..., half:].addcmul_(x[..., :half], sin[..., half:], value=sign)
    return out
