"""Whether a model can speak through cached attention. Promise: a model whose numbers would change is refused, with the reason."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ludus.errors import ConfigError, border
from ludus.models.attention.cached import NAME, KeyValueCache, Layout, Piece, Shape
from ludus.models.layers.inference import fuse, is_fused, logits, unswap


def forward(model: PreTrainedModel, ids: Tensor, *, layout: Layout, keep: Tensor | None = None) -> Tensor:
    """Logits (len(keep), vocabulary) of the packed tokens `ids` at the rows `keep`; None: at all rows."""
    if is_fused(model):
        return logits(model, ids, positions=layout.positions, place=layout, keep=keep)
    output = model(
        input_ids=ids[None],
        position_ids=layout.positions[None],
        use_cache=False,
        logits_to_keep=0 if keep is None else keep,
        layout=layout,
    )
    plain: Tensor = output.logits[0]
    return plain


Replay = Callable[[PreTrainedModel, Tensor], Tensor]
"""The logits of a few ids by an engine's own path."""


def serve(model: PreTrainedModel, *, max_tokens: int, attention: str = NAME, replay: Replay | None = None) -> bool:
    """Switches `model` to cached attention, in place, its layers fused where that gives the same numbers; says whether they are.

    ConfigError with the reason where cached attention would change what the model computes.
    """
    remedy = "use engine.kind 'server', or another model"
    if reason := _unsuited(model, max_tokens=max_tokens):
        raise ConfigError(f"{_name(model)} cannot run in the embedded engine: {reason}; {remedy}")
    with torch.inference_mode(), border(ConfigError, f"{_name(model)} cannot run in the embedded engine ({remedy})"):
        model.eval()
        ids = torch.arange(1, 9, device=model.device) % model.config.get_text_config().vocab_size
        model.set_attn_implementation("eager")
        expected = model(input_ids=ids[None], use_cache=False).logits[0].float()
        model.set_attn_implementation(attention)
        tolerance = 1e-3 if model.dtype == torch.float32 else 5e-2
        if fuse(model):
            if _gap(model, ids, expected, replay=replay or _replay) <= tolerance:
                return True
            unswap(model)
        gap = _gap(model, ids, expected, replay=replay or _replay)
    if not expected.isfinite().all():
        raise ConfigError(
            f"{_name(model)} gives logits that are not finite; its weights are broken or the wrong dtype ({model.dtype})"
        )
    if not gap <= tolerance:
        raise ConfigError(
            f"{_name(model)} cannot run in the embedded engine: its attention does more than our attention function is told. Logits of a "
            f"probe differ by {gap:.2g} relative, at most {tolerance:g} expected; {remedy}"
        )
    return False


def _gap(model: PreTrainedModel, ids: Tensor, expected: Tensor, *, replay: Replay) -> float:
    return float((replay(model, ids) - expected).abs().mean() / expected.abs().mean().clamp(min=1e-6))


def _replay(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """The logits of `ids` by the engine's path: a first piece, a second one that sees the first, then token by token."""
    cache = KeyValueCache(Shape.of(model), slots=1, length=len(ids), dtype=model.dtype, device=model.device)
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
        return f"its attention slides over {window} tokens and sessions may have {max_tokens}; only full attention is cached"
    if getattr(config, "attn_logit_softcapping", None):
        return "it caps attention logits (attn_logit_softcapping), which scaled-dot-product attention cannot do"
    longest = getattr(config, "max_position_embeddings", None)
    if longest and longest < max_tokens:
        return f"it knows {longest} positions and sessions may have {max_tokens} tokens; lower rollout.max_tokens"
    return ""


def _name(model: PreTrainedModel) -> str:
    return model.config.name_or_path or type(model).__name__
