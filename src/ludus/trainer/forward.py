"""Logprobs of the sampled tokens of a packed row. Promise: those of each sequence alone, at the sampling temperature, in float32, and
never the logits of a large vocabulary for all tokens at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from ludus.errors import ConfigError
from ludus.models.packed_attention import Segments, use_packed_attention
from ludus.trainer.pack import Microbatch

MAX_LOGITS = 1 << 25
"""Logits held at once (128 MiB in float32): 65536 tokens of a vocabulary of 512, 220 of one of 152,000."""


def sampled_logprobs(
    model: PreTrainedModel,
    microbatch: Microbatch,
    *,
    temperature: float,
    entropy_gradient: bool = False,
    max_logits: int = MAX_LOGITS,
) -> tuple[Tensor, Tensor]:
    """Logprobs (M,) with gradient, and entropies (M,) without, unless it is asked for."""
    hidden = sampled_hidden(model, microbatch)
    rows = max(1, max_logits // model.config.get_text_config().vocab_size)
    if len(hidden) <= rows:
        return _head(model, hidden, microbatch.targets, temperature, entropy_gradient)
    pieces = [
        # recomputed in the backward pass: keeping the logits for it is what costs the memory
        checkpoint(
            _head, model, part, targets, temperature, entropy_gradient, use_reentrant=False, preserve_rng_state=False
        )
        for part, targets in zip(hidden.split(rows), microbatch.targets.split(rows), strict=True)
    ]
    logprobs, entropies = zip(*pieces, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def sampled_hidden(model: PreTrainedModel, microbatch: Microbatch) -> Tensor:
    """(M, hidden): the last hidden state before each sampled token, which has read all that precedes it and nothing else."""
    decoder: Any = model.base_model
    hidden: Tensor = decoder(
        input_ids=microbatch.ids,
        position_ids=microbatch.positions,
        segments=microbatch.segments,
        use_cache=False,
    )[0]
    return hidden[0].index_select(0, microbatch.predictors)  # a head never sees observations


def _head(
    model: PreTrainedModel, hidden: Tensor, targets: Tensor, temperature: float, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    logits = model.get_output_embeddings()(hidden).float()
    if temperature != 1.0:
        logits = logits / temperature
    logprobs = logits.log_softmax(dim=-1)  # (M, vocabulary)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropies = -(logprobs.exp() * logprobs).sum(dim=-1)
    return logprobs.gather(1, targets.unsqueeze(1)).squeeze(1), entropies


@torch.no_grad()
def prepare(model: PreTrainedModel) -> None:
    """Switches `model` to packed rows, and compares them with its own forward pass on two short sequences. A model that drops the
    segments on the way to its attention, or bends its logits after the head, is refused here and not trained wrongly."""
    ids = (torch.arange(12, device=model.device) * 7 + 3).remainder(model.config.get_text_config().vocab_size)
    lengths = [5, 7]
    alone = [model(input_ids=part.unsqueeze(0), use_cache=False).logits[0] for part in ids.split(lengths)]
    expected = torch.cat(alone).float().log_softmax(dim=-1).gather(1, ids.unsqueeze(1)).squeeze(1)
    use_packed_attention(model)
    packed = Microbatch(
        ids=ids.unsqueeze(0),
        positions=torch.cat([torch.arange(n, device=ids.device) for n in lengths]).unsqueeze(0),
        segments=Segments.of(lengths, device=ids.device),
        predictors=torch.arange(len(ids), device=ids.device),
        targets=ids,
        **dict.fromkeys(("behaviour_logprobs", "advantages", "weights"), torch.zeros(len(ids), device=ids.device)),
    )
    got, _ = sampled_logprobs(model, packed, temperature=1.0)
    gap = float((got - expected).abs().max())
    if not gap < 1e-3:
        raise ConfigError(
            f"{type(model).__name__} gives other logprobs on packed rows than on its own: they differ by {gap:.3g}, expected below 1e-3. "
            "Its attention does not take part in packing, or it changes logits after the head; train another architecture."
        )
