"""Inference layers: a decoder's layers with few operations, for engines. Promise: the same numbers
as Transformers' own modules, up to rounding.

With one token per sequence the number of operations bounds a layer: about forty in Transformers'
modules, ten in these. Layers of the Llama kind (Llama, Qwen2, Qwen3, Mistral, SmolLM) are
recognised by their parts. Only their classes are replaced, so parameters keep their names; weights
of projections that read the same input become views of one, so loads reach them. models/serving.py
compares a model with its own forward pass before it uses these. They have no gradients.
"""

# mypy: disable-error-code="no-any-return, no-untyped-call"
# A mixin's module is Any to mypy, and so is what autograd.Function.apply returns.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj", "act_fn")
_LAYER = ("self_attn", "mlp", "input_layernorm", "post_attention_layernorm")


def use_inference_layers(model: PreTrainedModel) -> bool:
    """Replaces the layers in place. False, with nothing changed, if one is not recognised."""
    layers = known_layers(model)
    for layer in layers:
        for owner, projections in same_input(layer):
            owner.merged = MergedLinear.of(projections)
        layer.self_attn.__class__ = mixed_in(type(layer.self_attn), _Attention)
        layer.mlp.__class__ = mixed_in(type(layer.mlp), _Mlp)
        layer.__class__ = mixed_in(type(layer), _Layer)
    return bool(layers)


def restore_layers(model: PreTrainedModel) -> None:
    """Puts the original classes back. Merged weights stay merged, which changes nothing."""
    for module in model.modules():
        if (original := getattr(type(module), "original", None)) is not None:
            module.__class__ = original


def layers_of(model: PreTrainedModel) -> Sequence[Any]:
    return getattr(model.base_model, "layers", None) or ()


def known_layers(model: PreTrainedModel) -> Sequence[Any]:
    """The decoder's layers; none if one is not of the Llama kind."""
    layers = layers_of(model)
    return layers if all(recognised(layer) for layer in layers) else ()


def recognised(layer: Any) -> bool:
    return (
        {name for name, _ in layer.named_children()} == set(_LAYER)
        and all(hasattr(layer.self_attn, name) for name in _ATTENTION)
        and all(hasattr(layer.mlp, name) for name in _MLP)
        and "silu" in type(layer.mlp.act_fn).__name__.lower()
        and hasattr(layer.input_layernorm, "variance_epsilon")
        and hasattr(layer.post_attention_layernorm, "variance_epsilon")
    )


def same_input(layer: Any) -> list[tuple[Any, list[Any]]]:
    """The projections that read the same input, with their owner."""
    attention, mlp = layer.self_attn, layer.mlp
    return [(attention, [attention.q_proj, attention.k_proj, attention.v_proj]), (mlp, [mlp.gate_proj, mlp.up_proj])]


def mixed_in(original: type, mixin: type) -> type:
    if issubclass(original, mixin):  # of a copied model
        return original
    return type(f"Ludus{original.__name__}", (mixin, original), {"original": original})


class MergedLinear:
    """Several projections of one input as one product. Their weights become views of `weight`."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    @classmethod
    def of(cls, projections: list[nn.Linear]) -> MergedLinear:
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
        """A copied model would share the old weights: its projections are merged again."""
        return


class _Attention(nn.Module):
    def attended(self: Any, x: Tensor, cos: Tensor, sin: Tensor, *, place: Any) -> Tensor:
        """(tokens, hidden) -> (tokens, heads * head_dim), before the output projection."""
        tokens, dim = x.shape[0], self.head_dim
        heads = [projection.out_features // dim for projection in (self.q_proj, self.k_proj, self.v_proj)]
        merged = self.merged(x).view(tokens, -1, dim)
        if hasattr(self, "q_norm"):
            query, key, value = merged.split(heads, dim=1)
            query, key = (_rotate(part.contiguous(), cos, sin) for part in (self.q_norm(query), self.k_norm(key)))
        else:
            rotated = _rotate(merged[:, : heads[0] + heads[1]], cos, sin)
            (query, key), value = rotated.split(heads[:2], dim=1), merged[:, heads[0] + heads[1] :]
        return place.attended(query, key, value, layer=self.layer_idx, scaling=self.scaling).reshape(tokens, -1)


class _Mlp(nn.Module):
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.down_proj(_silu_times(self.merged(x)))


class _Layer(nn.Module):
    def forward(
        self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], place: Any, **_: Any
    ) -> Tensor:
        """As Transformers calls it; the engine passes `place`."""
        cos, sin = position_embeddings
        return self.computed(hidden_states[0], cos[0], sin[0], place=place)[None]

    def computed(self: Any, x: Tensor, cos: Tensor, sin: Tensor, *, place: Any, rows: Tensor | None = None) -> Tensor:
        """(tokens, hidden) -> (rows, hidden): after attention, only `rows` are computed."""
        attended = self.self_attn.attended(_rms_norm(x, self.input_layernorm), cos, sin, place=place)
        if rows is not None:
            x, attended = (part.index_select(0, rows) for part in (x, attended))
        summed, normed = _add_rms_norm(x, self.self_attn.o_proj(attended), self.post_attention_layernorm)
        return summed + self.mlp.forward(normed)


def has_inference_layers(model: PreTrainedModel) -> bool:
    return any(isinstance(layer, _Layer) for layer in layers_of(model))


def logits(model: PreTrainedModel, ids: Tensor, *, place: Any, keep: Tensor | None) -> Tensor:
    """(len(keep), vocabulary): the forward pass of a model with inference layers, and no more."""
    decoder: Any = model.base_model
    hidden = decoder.embed_tokens(ids)
    cos, sin = (x[0] for x in decoder.rotary_emb(hidden, position_ids=place.positions[None]))
    last = len(decoder.layers) - 1
    for number, layer in enumerate(decoder.layers):
        hidden = layer.computed(hidden, cos, sin, place=place, rows=keep if number == last else None)
    return model.get_output_embeddings()(_rms_norm(hidden, decoder.norm))


# -------------------------------------------------------------- one operation, on either device


def kernels() -> Any:
    """Imported on CUDA devices only: they need Triton."""
    from ludus.models.kernels import inference

    return inference


def _rms_norm(x: Tensor, norm: Any) -> Tensor:
    if x.is_cuda:
        return kernels().rms_norm(x, norm.weight, eps=norm.variance_epsilon)
    return F.rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)


def _add_rms_norm(x: Tensor, added: Tensor, norm: Any) -> tuple[Tensor, Tensor]:
    if x.is_cuda:
        return kernels().add_rms_norm(x, added, norm.weight, eps=norm.variance_epsilon)
    summed = x + added
    return summed, _rms_norm(summed, norm)


def _silu_times(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return kernels().silu_times(gate, up) if x.is_cuda else F.silu(gate).mul_(up)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(tokens, heads, head_dim); cos, sin: (tokens, head_dim)."""
    return kernels().rotate(x, cos, sin) if x.is_cuda else rotated(x, cos[:, None], sin[:, None])


def rotated(x: Tensor, cos: Tensor, sin: Tensor, *, sign: int = 1) -> Tensor:
    """The rotary embedding of (..., head_dim) on a CPU; with sign -1 its transpose."""
    half = x.shape[-1] // 2
    out = x * cos
    out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-sign)
    out[..., half:].addcmul_(x[..., :half], sin[..., half:], value=sign)
    return out
