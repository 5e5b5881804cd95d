"""A decoder's layers with few operations, for engines. Promise: the same numbers as Transformers' own modules, up to rounding.

At one token per sequence a layer is bound by the number of its operations: Transformers' modules make about forty, these ten. Layers of
the Llama kind (Llama, Qwen2, Qwen3, Mistral, SmolLM) are recognised by their parts; their classes are swapped, so that parameters keep
their names, and projections that read the same input become views of one weight, so that loading new weights reaches them too.
Whoever fuses a model compares it with its own forward pass before (models/serving.py). No gradients flow through these.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj", "act_fn")
_LAYER = ("self_attn", "mlp", "input_layernorm", "post_attention_layernorm")


def fuse(model: PreTrainedModel) -> bool:
    """Swaps what it recognises, in place; False, and nothing changed, where a layer is of another kind."""
    layers: Any = getattr(model.base_model, "layers", None)
    if not layers or not all(recognised(layer) for layer in layers):
        return False
    for layer in layers:
        layer.self_attn.joined = Joined.of([layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj])
        layer.mlp.joined = Joined.of([layer.mlp.gate_proj, layer.mlp.up_proj])
        layer.self_attn.__class__ = swapped(type(layer.self_attn), _Attention)
        layer.mlp.__class__ = swapped(type(layer.mlp), _Mlp)
        layer.__class__ = swapped(type(layer), _Layer)
    return True


def unswap(model: PreTrainedModel) -> None:
    """The classes as they were. Weights stay views of the joined ones, which changes nothing."""
    for module in model.modules():
        if (original := getattr(type(module), "original", None)) is not None:
            module.__class__ = original


def recognised(layer: nn.Module) -> bool:
    if not all(hasattr(layer, name) for name in _LAYER):
        return False
    attention: Any = layer.self_attn
    mlp: Any = layer.mlp
    parts = all(hasattr(attention, name) for name in _ATTENTION) and all(hasattr(mlp, name) for name in _MLP)
    extra = {name for name, _ in layer.named_children()} - set(_LAYER)
    norms = (layer.input_layernorm, layer.post_attention_layernorm)
    return (
        parts
        and not extra
        and "silu" in type(mlp.act_fn).__name__.lower()
        and all(hasattr(norm, "variance_epsilon") for norm in norms)
    )


def swapped(original: type, mixin: type) -> type:
    if issubclass(original, mixin):  # a copy of a fused model
        return original
    return type(f"Fused{original.__name__}", (mixin, original), {"original": original})


class Joined:
    """Several projections of one input as one product. Their weights become views of `weight`."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    @classmethod
    def of(cls, projections: list[nn.Linear]) -> Joined:
        weight = torch.cat([projection.weight.data for projection in projections])
        biases = [projection.bias.data for projection in projections if projection.bias is not None]
        bias = torch.cat(biases) if len(biases) == len(projections) else None
        assert bias is not None or not biases, "either all projections have a bias or none"
        sizes = [projection.out_features for projection in projections]
        for projection, part in zip(projections, weight.split(sizes), strict=True):
            projection.weight.data = part
        if bias is not None:
            for projection, part in zip(projections, bias.split(sizes), strict=True):
                projection.bias.data = part
        return cls(weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def __deepcopy__(self, memo: Any) -> None:
        """A copied model's views would point to the old weights: it must be fused anew."""
        return


class _Attention(nn.Module):
    def attended(self, x: Tensor, cos: Tensor, sin: Tensor, *, place: Any) -> Tensor:
        """(tokens, hidden) -> (tokens, heads * head_dim), before the projection out. `place` knows where keys and values go and what each
        token sees."""
        this: Any = self
        tokens, dim = x.shape[0], this.head_dim
        heads = [projection.out_features // dim for projection in (this.q_proj, this.k_proj, this.v_proj)]
        joined = this.joined(x).view(tokens, -1, dim)
        if hasattr(this, "q_norm"):
            query, key, value = joined.split(heads, dim=1)
            query, key = (_rotate(part.contiguous(), cos, sin) for part in (this.q_norm(query), this.k_norm(key)))
        else:
            rotated = _rotate(joined[:, : heads[0] + heads[1]], cos, sin)
            (query, key), value = rotated.split(heads[:2], dim=1), joined[:, heads[0] + heads[1] :]
        out: Tensor = place.attended(query, key, value, layer=this.layer_idx, scaling=this.scaling)
        return out.reshape(tokens, -1)


class _Mlp(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        this: Any = self
        out: Tensor = this.down_proj(_silu_times(this.joined(x)))
        return out


class _Layer(nn.Module):
    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        layout: Any = None,
        paged: Any = None,
        **_: Any,
    ) -> Tensor:
        """As Transformers calls it; `layout` or `paged`, whichever the engine passes."""
        cos, sin = position_embeddings
        return self.computed(hidden_states[0], cos[0], sin[0], place=paged if paged is not None else layout)[None]

    def computed(self, x: Tensor, cos: Tensor, sin: Tensor, *, place: Any, rows: Tensor | None = None) -> Tensor:
        """(tokens, hidden) -> (rows, hidden): behind the attention, only the `rows` that anybody reads."""
        this: Any = self
        attended = this.self_attn.attended(_rms_norm(x, this.input_layernorm), cos, sin, place=place)
        if rows is not None:
            x, attended = (part.index_select(0, rows) for part in (x, attended))
        summed, normed = _add_rms_norm(x, this.self_attn.o_proj(attended), this.post_attention_layernorm)
        out: Tensor = summed + this.mlp.forward(normed)
        return out


def is_fused(model: PreTrainedModel) -> bool:
    layers: Any = getattr(model.base_model, "layers", None)
    return bool(layers) and isinstance(layers[0], _Layer)


def logits(model: PreTrainedModel, ids: Tensor, *, positions: Tensor, place: Any, keep: Tensor | None) -> Tensor:
    """(len(keep), vocabulary), of a fused model: what its own forward pass does, without what that does for others."""
    decoder: Any = model.base_model
    hidden = decoder.embed_tokens(ids)
    cos, sin = (x[0] for x in decoder.rotary_emb(hidden, position_ids=positions[None]))
    last = len(decoder.layers) - 1
    for number, layer in enumerate(decoder.layers):
        hidden = layer.computed(hidden, cos, sin, place=place, rows=keep if number == last else None)
    out: Tensor = model.get_output_embeddings()(_rms_norm(hidden, decoder.norm))
    return out


# ------------------------------------------------------------------------------------------------ one operation, on either device


def _rms_norm(x: Tensor, norm: Any) -> Tensor:
    if not x.is_cuda:
        return F.rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)
    from ludus.models.kernels import inference as kernels

    return kernels.rms_norm(x, norm.weight, eps=norm.variance_epsilon)


def _add_rms_norm(x: Tensor, added: Tensor, norm: Any) -> tuple[Tensor, Tensor]:
    if not x.is_cuda:
        summed = x + added
        return summed, _rms_norm(summed, norm)
    from ludus.models.kernels import inference as kernels

    return kernels.add_rms_norm(x, added, norm.weight, eps=norm.variance_epsilon)


def _silu_times(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    if not x.is_cuda:
        return F.silu(gate).mul_(up)
    from ludus.models.kernels import inference as kernels

    return kernels.silu_times(gate, up)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The rotary embedding of (tokens, heads, head_dim); cos, sin: (tokens, head_dim)."""
    if x.is_cuda:
        from ludus.models.kernels import inference as kernels

        return kernels.rotate(x, cos, sin)
    half = x.shape[-1] // 2
    out = x * cos[:, None]
    out[..., :half].addcmul_(x[..., half:], sin[:, None, :half], value=-1)
    out[..., half:].addcmul_(x[..., :half], sin[:, None, half:])
    return out
