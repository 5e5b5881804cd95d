"""Prepares a model for cached attention. Promise: if its numbers would change, it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ludus.errors import ConfigError, border
from ludus.models.attention.cached import NAME, KeyValueCache, Layout, Piece, Shape
from ludus.models.layers.inference import has_inference_layers, logits, restore_layers, use_inference_layers


def forward(model: PreTrainedModel, ids: Tensor, *, layout: Layout, keep: Tensor | None = None) -> Tensor:
    """Logits (len(keep), vocabulary) after the tokens `keep` of `ids`; None: after all."""
    if has_inference_layers(model):
        return logits(model, ids, place=layout, keep=keep)
    return own_forward(model, ids, place=layout, keep=keep)


def own_forward(model: PreTrainedModel, ids: Tensor, *, place: Any, keep: Tensor | None) -> Tensor:
    """As `forward`, by Transformers' own code. `place` is passed on to the attention function."""
    options = {"position_ids": place.positions[None], "logits_to_keep": 0 if keep is None else keep, "place": place}
    plain: Tensor = model(input_ids=ids[None], use_cache=False, **options).logits[0]
    return plain


Replay = Callable[[PreTrainedModel, Tensor], Tensor]
"""Computes the logits of a few ids by an engine's own path."""


def serve(model: PreTrainedModel, *, max_tokens: int, replay: Replay | None = None) -> bool:
    """Switches `model` to cached attention in place, and to inference layers where they give the
    same numbers; returns whether they do. Raises ConfigError where attention would change them."""
    remedy = "use engine.kind 'server', or another model"
    if reason := _unsuited(model, max_tokens=max_tokens):
        raise ConfigError(f"{_name(model)} cannot run in the embedded engine: {reason}; {remedy}")
    with torch.inference_mode(), border(ConfigError, f"{_name(model)} cannot run in the embedded engine ({remedy})"):
        model.eval()
        ids = torch.arange(1, 9, device=model.device) % model.config.get_text_config().vocab_size
        model.set_attn_implementation("eager")
        expected = model(input_ids=ids[None], use_cache=False).logits[0].float()
        model.set_attn_implementation(NAME)
        tolerance = 1e-3 if model.dtype == torch.float32 else 5e-2
        if use_inference_layers(model):
            if _gap(model, ids, expected, replay=replay or _replay) <= tolerance:
                return True
            restore_layers(model)
        gap = _gap(model, ids, expected, replay=replay or _replay)
    if not expected.isfinite().all():
        raise ConfigError(
            f"{_name(model)} gives logits that are not finite; its weights are broken or its dtype "
            f"({model.dtype}) is wrong"
        )
    if not gap <= tolerance:
        raise ConfigError(
            f"{_name(model)} cannot run in the embedded engine: cached attention changes its numbers. Logits of a probe "
            f"differ by {gap:.2g} relative, at most {tolerance:g} expected; {remedy}"
        )
    return False


def _gap(model: PreTrainedModel, ids: Tensor, expected: Tensor, *, replay: Replay) -> float:
    return float((replay(model, ids) - expected).abs().mean() / expected.abs().mean().clamp(min=1e-6))


def _replay(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """The logits of `ids` by the engine's path: two pieces of a prompt, then token by token."""
    cache = KeyValueCache(Shape.of(model), rows=1, length=len(ids), dtype=model.dtype, device=model.device)
    logits, start = [], 0
    for count in (3, 2, *[1] * (len(ids) - 5)):
        layout = Layout([Piece(0, start, count)], cache=cache, dtype=model.dtype, device=model.device)
        logits.append(forward(model, ids[start : start + count], layout=layout))
        start += count
    return torch.cat(logits).float()


def _unsuited(model: PreTrainedModel, *, max_tokens: int) -> str:
    config = model.config.get_text_config()
    if not model._can_set_attn_implementation():
        return "its attention does not go through Transformers' attention interface"
    kinds = set(getattr(config, "layer_types", None) or []) - {"full_attention", "sliding_attention"}
    if kinds:
        return f"it has layers of kind {', '.join(sorted(kinds))}, and only full attention is cached"
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True) and window < max_tokens:
        return (
            f"its sliding window is {window} tokens and sessions may have {max_tokens}; only full attention is cached"
        )
    if getattr(config, "attn_logit_softcapping", None):
        return "it caps attention logits (attn_logit_softcapping), which scaled-dot-product attention cannot do"
    longest = getattr(config, "max_position_embeddings", None)
    if longest and longest < max_tokens:
        return f"it has {longest} positions and sessions may have {max_tokens} tokens; lower rollout.max_tokens"
    return ""


def _name(model: PreTrainedModel) -> str:
    return model.config.name_or_path or type(model).__name__
