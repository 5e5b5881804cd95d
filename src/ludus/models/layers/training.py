"""A decoder's layers with fewer passes over memory, for training. Promise: the numbers and gradients of Transformers' own modules, up to
rounding.

Beside matrix products and attention, a small model's step is bound by elementwise passes over its activations. Norms and rotary
embeddings get backward passes written by hand, on a GPU as kernels of their own, and the last layer computes, beside keys and values,
only the rows that predict something: nothing reads the others. A compiler would fuse the same operations, but on a GPU its wrappers
keep the host busier than the device (docs/log.md). Layers of the Llama kind are recognised by their parts; classes are swapped, so that
parameters keep their names. Whoever makes a model lean compares it with its own forward pass (trainer/forward.py).
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from ludus.models.layers.inference import Joined, recognised, swapped


def lean(model: PreTrainedModel) -> bool:
    """Swaps what it recognises, in place; False, and nothing changed, where a layer is of another kind, or the device."""
    decoder: Any = model.base_model
    layers = getattr(decoder, "layers", None)
    if not _has_device(model) or not layers or not all(recognised(layer) for layer in layers):
        return False
    for layer in layers:
        layer.__class__ = swapped(type(layer), _Layer)
        layer.self_attn.__class__ = swapped(type(layer.self_attn), _Attention)
    for norm in [module for module in decoder.modules() if hasattr(module, "variance_epsilon")]:
        norm.__class__ = swapped(type(norm), _Norm)
    layers[-1].reads_rows = True
    return True


def _on_gpu(what: Tensor | PreTrainedModel) -> bool:
    return what.device.type == "cuda"


def _has_device(model: PreTrainedModel) -> bool:
    if _on_gpu(model):
        return find_spec("triton") is not None
    return model.device.type == "cpu" and model.dtype == torch.float32


def is_lean(model: PreTrainedModel) -> bool:
    layers: Any = getattr(model.base_model, "layers", None)
    return bool(layers) and isinstance(layers[0], _Layer)


def join(model: PreTrainedModel) -> None:
    """On a GPU, of lean layers whose weights are all trained: projections of the same input become one product each, forward and
    backward. Their weights turn into views of one, so whoever casts or moves them has done so before."""
    if not is_lean(model) or not _on_gpu(model):
        return
    layers: Any = model.base_model.layers
    for layer in layers:
        attention, mlp = layer.self_attn, layer.mlp
        for owner, projections in (
            (attention, [attention.q_proj, attention.k_proj, attention.v_proj]),
            (mlp, [mlp.gate_proj, mlp.up_proj]),
        ):
            if all(type(each) is nn.Linear and each.weight.requires_grad for each in projections):
                owner.joined = Joined.of(projections)


def _projected(x: Tensor, owner: Any, projections: list[Any]) -> Tensor:
    from ludus.models.layers.training_gpu import Projected

    parts = _parts(projections)
    out: Tensor = Projected.apply(x, owner.joined.weight, owner.joined.bias, *parts)  # type: ignore[no-untyped-call]
    return out


def _parts(projections: list[Any]) -> list[Tensor]:
    """Weights, then biases."""
    return [each.weight for each in projections] + [each.bias for each in projections if each.bias is not None]


class _Layer(nn.Module):
    reads_rows = False

    def forward(self, hidden_states: Tensor, rows: Tensor | None = None, **passed: Any) -> Tensor:
        """`rows`: those that anybody reads of the last layer; of any other layer all are read."""
        this: Any = self
        attended = this.self_attn.attended(this.input_layernorm(hidden_states), **passed)
        if self.reads_rows and rows is not None:
            hidden_states, attended = (x.index_select(1, rows) for x in (hidden_states, attended))
        summed, normed = _add_norm(hidden_states, this.self_attn.o_proj(attended), this.post_attention_layernorm)
        out: Tensor = summed + _mlp(normed, this.mlp)
        return out


def _add_norm(x: Tensor, added: Tensor, norm: Any) -> tuple[Tensor, Tensor]:
    if _on_gpu(x):
        from ludus.models.layers.training_gpu import AddRmsNorm

        both: tuple[Tensor, Tensor] = AddRmsNorm.apply(x, added, norm.weight, norm.variance_epsilon)  # type: ignore[no-untyped-call]
        return both
    summed = x + added
    return summed, norm(summed)


def _mlp(x: Tensor, mlp: Any) -> Tensor:
    if not _on_gpu(x):
        own: Tensor = mlp(x)
        return own
    from ludus.models.layers.training_gpu import SiluTimes

    if getattr(mlp, "joined", None) is not None:
        parts: tuple[Tensor, ...] = (_projected(x, mlp, [mlp.gate_proj, mlp.up_proj]),)
    else:
        parts = (mlp.gate_proj(x), mlp.up_proj(x))
    out: Tensor = mlp.down_proj(SiluTimes.apply(*parts))  # type: ignore[no-untyped-call]
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
        query, key, value = self._heads(hidden, *position_embeddings)
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

    def _heads(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys, rotated, and values: (1, tokens, heads, head_dim) each."""
        this: Any = self
        shape = (*hidden.shape[:-1], -1, this.head_dim)
        projections = [this.q_proj, this.k_proj, this.v_proj]
        heads = [projection.out_features // this.head_dim for projection in projections]
        if getattr(this, "joined", None) is None:
            query, key, value = (projection(hidden).view(shape) for projection in projections)
        elif hasattr(this, "q_norm"):
            query, key, value = _projected(hidden, this, projections).view(shape).split(heads, dim=2)
        else:
            from ludus.models.layers.training_gpu import Heads

            parts: tuple[Tensor, Tensor, Tensor] = Heads.apply(  # type: ignore[no-untyped-call]
                hidden, cos, sin, this.joined.weight, this.joined.bias, heads, *_parts(projections)
            )
            return parts
        if hasattr(this, "q_norm"):
            query, key = this.q_norm(query), this.k_norm(key)
        query, key = (_rotate(x, cos.unsqueeze(2), sin.unsqueeze(2)) for x in (query, key))
        return query, key, value


class _Norm(nn.Module):
    def forward(self, hidden_states: Tensor) -> Tensor:
        this: Any = self
        normed: Tensor = _RmsNorm.apply(hidden_states, this.weight, this.variance_epsilon)  # type: ignore[no-untyped-call]
        return normed


class _RmsNorm(torch.autograd.Function):
    """y = w x r, r = 1 / sqrt(mean(x^2) + eps).  dx = r (dy w - x r^2 mean(dy w x)),  dw = sum over rows of dy x r."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.eps = eps
        if _on_gpu(x):
            from ludus.models.kernels import inference as kernels

            x = x.contiguous()
            ctx.save_for_backward(x, weight)
            return kernels.rms_norm(x, weight, eps=eps)
        r = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, r)
        normed: Tensor = (x * r).mul_(weight)
        return normed

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor | None, None]:
        if _on_gpu(dy):
            from ludus.models.kernels import training as lean_kernels

            return *lean_kernels.rms_norm_backward(
                dy, *ctx.saved_tensors, eps=ctx.eps, weighs=ctx.needs_input_grad[1]
            ), None
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
        return _rotated(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotated(dy, cos, sin, back=True), None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    rotated: Tensor = _Rotate.apply(x, cos, sin)  # type: ignore[no-untyped-call]
    return rotated


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, *, back: bool = False) -> Tensor:
    """(1, tokens, heads, head_dim); cos, sin: (1, tokens, 1, head_dim)."""
    if _on_gpu(x):
        from ludus.models.kernels import inference as kernels

        return kernels.rotate(x.contiguous()[0], cos[0, :, 0], sin[0, :, 0], back=back)[None]
    sign = -1 if back else 1
    half = x.shape[-1] // 2
    out = x * cos
    out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-sign)
    out[..., half:].addcmul_(x[..., :half], sin[..., half:], value=sign)
    return out
