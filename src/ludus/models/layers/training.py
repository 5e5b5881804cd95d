"""Training layers: a decoder's layers with fewer passes over memory. Promise: the numbers and
gradients of Transformers' own modules, up to rounding.

Apart from matrix products and attention, elementwise passes over activations bound a small model's
step. Norms and rotary embeddings have hand-written backward passes, on a GPU as kernels, and the
last layer computes, beside keys and values, only the rows that predict something. A compiler would
fuse the same operations, but on a GPU its wrappers keep the host busier than the device
(docs/log.md). Layers are recognised and replaced as in inference.py; trainer/forward.py compares a
model with its own forward pass before it uses these.
"""

# mypy: disable-error-code="no-any-return, no-untyped-call"
# A mixin's module is Any to mypy, and so is what autograd.Function.apply returns.

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from ludus.models.layers.inference import MergedLinear, kernels, known_layers, layers_of, mixed_in, rotated, same_input


def use_training_layers(model: PreTrainedModel) -> bool:
    """Replaces the layers in place. False, with nothing changed, if they are not supported."""
    layers = known_layers(model) if _has_device(model) else ()
    if not layers:
        return False
    for layer in layers:
        layer.__class__ = mixed_in(type(layer), _Layer)
        layer.self_attn.__class__ = mixed_in(type(layer.self_attn), _Attention)
    for norm in [module for module in model.base_model.modules() if hasattr(module, "variance_epsilon")]:
        norm.__class__ = mixed_in(type(norm), _Norm)
    layers[-1].reads_rows = True
    return True


def _on_gpu(what: Tensor | PreTrainedModel) -> bool:
    return what.device.type == "cuda"


def _has_device(model: PreTrainedModel) -> bool:
    if _on_gpu(model):
        return find_spec("triton") is not None
    return model.device.type == "cpu" and model.dtype == torch.float32


def has_training_layers(model: PreTrainedModel) -> bool:
    return any(isinstance(layer, _Layer) for layer in layers_of(model))


def merge_projections(model: PreTrainedModel) -> None:
    """On a GPU, merges those projections of training layers that read the same input and are all
    trained: one product each way. Cast or move the weights before: they become views."""
    if not has_training_layers(model) or not _on_gpu(model):
        return
    for layer in layers_of(model):
        for owner, projections in same_input(layer):
            if all(type(each) is nn.Linear and each.weight.requires_grad for each in projections):
                owner.merged = MergedLinear.of(projections)


def _gpu() -> Any:
    from ludus.models.layers import training_gpu

    return training_gpu


def _projected(x: Tensor, owner: Any, projections: list[Any]) -> Tensor:
    return _gpu().Projected.apply(x, owner.merged.weight, owner.merged.bias, *_parts(projections))


def _parts(projections: list[Any]) -> list[Tensor]:
    """Weights, then biases."""
    return [each.weight for each in projections] + [each.bias for each in projections if each.bias is not None]


class _Layer(nn.Module):
    reads_rows = False

    def forward(self: Any, hidden_states: Tensor, rows: Tensor | None = None, **passed: Any) -> Tensor:
        """`rows`: the rows of the last layer's output that are read."""
        attended = self.self_attn.attended(self.input_layernorm(hidden_states), **passed)
        if self.reads_rows and rows is not None:
            hidden_states, attended = (x.index_select(1, rows) for x in (hidden_states, attended))
        summed, normed = _add_norm(hidden_states, self.self_attn.o_proj(attended), self.post_attention_layernorm)
        return summed + _mlp(normed, self.mlp)


def _add_norm(x: Tensor, added: Tensor, norm: Any) -> tuple[Tensor, Tensor]:
    if _on_gpu(x):
        return _gpu().AddRmsNorm.apply(x, added, norm.weight, norm.variance_epsilon)
    summed = x + added
    return summed, norm(summed)


def _mlp(x: Tensor, mlp: Any) -> Tensor:
    if not _on_gpu(x):
        return mlp(x)
    if getattr(mlp, "merged", None) is not None:
        parts: tuple[Tensor, ...] = (_projected(x, mlp, [mlp.gate_proj, mlp.up_proj]),)
    else:
        parts = (mlp.gate_proj(x), mlp.up_proj(x))
    return mlp.down_proj(_gpu().SiluTimes.apply(*parts))


class _Attention(nn.Module):
    def attended(
        self: Any, hidden: Tensor, position_embeddings: tuple[Tensor, Tensor], attention_mask: Any = None, **passed: Any
    ) -> Tensor:
        """(1, tokens, heads * head_dim), before the output projection."""
        query, key, value = self._heads(hidden, *position_embeddings)
        attend = AttentionInterface()[self.config._attn_implementation]
        passed |= {"scaling": self.scaling, "sliding_window": getattr(self, "sliding_window", None)}
        out = attend(self, *(x.transpose(1, 2) for x in (query, key, value)), attention_mask, **passed)[0]
        return out.reshape(*hidden.shape[:-1], -1)

    def _heads(self: Any, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values: (1, tokens, heads, head_dim) each."""
        shape = (*hidden.shape[:-1], -1, self.head_dim)
        projections = [self.q_proj, self.k_proj, self.v_proj]
        heads = [projection.out_features // self.head_dim for projection in projections]
        if getattr(self, "merged", None) is None:
            query, key, value = (projection(hidden).view(shape) for projection in projections)
        elif hasattr(self, "q_norm"):
            query, key, value = _projected(hidden, self, projections).view(shape).split(heads, dim=2)
        else:
            weight, bias = self.merged.weight, self.merged.bias
            return _gpu().Heads.apply(hidden, cos, sin, weight, bias, heads, *_parts(projections))
        if hasattr(self, "q_norm"):
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = (_Rotate.apply(x, cos.unsqueeze(2), sin.unsqueeze(2)) for x in (query, key))
        return query, key, value


class _Norm(nn.Module):
    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        return _RmsNorm.apply(hidden_states, self.weight, self.variance_epsilon)


class _RmsNorm(torch.autograd.Function):
    """y = w x r, r = rsqrt(mean(x^2) + eps); dx = r dy w - x r^3 mean(dy w x), dw = sum dy x r."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.eps = eps
        if _on_gpu(x):
            x = x.contiguous()
            ctx.save_for_backward(x, weight)
            return kernels().rms_norm(x, weight, eps=eps)
        r = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, r)
        return (x * r).mul_(weight)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor | None, None]:
        if _on_gpu(dy):
            backward = _gpu().training_kernels.rms_norm_backward
            return *backward(dy, *ctx.saved_tensors, eps=ctx.eps, weighs=ctx.needs_input_grad[1]), None
        x, weight, r = ctx.saved_tensors
        products = dy * x
        slope = (products @ weight).unsqueeze(-1).mul_(r.pow(3)).div_(-x.shape[-1])
        dw = r.flatten() @ products.reshape(-1, x.shape[-1])
        dx = (dy * weight).mul_(r).addcmul_(x, slope)
        return dx, dw, None


class _Rotate(torch.autograd.Function):
    """x cos + rotate_half(x) sin over (..., head_dim); its transpose rotates back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        return _rotate(dy, *ctx.saved_tensors, back=True), None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, *, back: bool = False) -> Tensor:
    """(1, tokens, heads, head_dim); cos, sin: (1, tokens, 1, head_dim)."""
    if _on_gpu(x):
        return kernels().rotate(x.contiguous()[0], cos[0, :, 0], sin[0, :, 0], back=back)[None]
    return rotated(x, cos, sin, sign=-1 if back else 1)
