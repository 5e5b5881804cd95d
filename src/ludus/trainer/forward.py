"""Logprobs of the sampled tokens of a packed row.

Promise: they equal those of each sequence alone, at the sampling temperature, in float32. The
logits of a large vocabulary never exist for all tokens at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ludus.errors import ConfigError
from ludus.models.attention.packed import Segments, use_packed_attention
from ludus.models.layers.inference import restore_layers
from ludus.models.layers.training import has_training_layers, use_training_layers
from ludus.trainer.head import logprobs_in_pieces
from ludus.trainer.pack import Microbatch

MAX_LOGITS = 1 << 25
"""Logits held at once on a CPU: 128 MiB in float32, 220 tokens of a vocabulary of 152,000."""
GPU_SHARE = 64
"""On a GPU logits take at most 1/64 of its memory: of 140 GiB 2.2, 7,700 such tokens."""
KEPT = 4
"""Pieces of that size that may be kept for the backward pass instead of computed again."""


def sampled_logprobs(
    model: PreTrainedModel,
    microbatch: Microbatch,
    *,
    temperature: float,
    entropy_gradient: bool = False,
    max_logits: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return logprobs (M,) with gradient, and entropies (M,) with `entropy_gradient` or without."""
    hidden = sampled_hidden(model, microbatch)
    rows = max(1, (max_logits or _most_logits(hidden)) // model.config.get_text_config().vocab_size)
    # small enough to keep; on a GPU the pieces are faster at any size
    if len(hidden) <= rows and not hidden.is_cuda:
        return _head(model, hidden, microbatch.targets, temperature, entropy_gradient)
    head: Any = model.get_output_embeddings()
    logprobs, entropies = logprobs_in_pieces(
        hidden,
        head.weight,
        head.bias,
        microbatch.targets,
        temperature=temperature,
        rows=rows,
        kept=KEPT * rows if hidden.is_cuda and max_logits is None else 0,
    )
    return logprobs, entropies if entropy_gradient else entropies.detach()


def _most_logits(hidden: Tensor) -> int:
    if not hidden.is_cuda:
        return MAX_LOGITS
    return torch.cuda.get_device_properties(hidden.device).total_memory // GPU_SHARE // hidden.dtype.itemsize


def sampled_hidden(model: PreTrainedModel, microbatch: Microbatch) -> Tensor:
    """Return the last hidden state before each sampled token, (M, hidden)."""
    decoder: Any = model.base_model
    in_model = {"rows": microbatch.predictors} if has_training_layers(model) else {}
    hidden: Tensor = decoder(
        input_ids=microbatch.ids,
        position_ids=microbatch.positions,
        segments=microbatch.segments,
        use_cache=False,
        **in_model,
    )[0]
    # the head never gets observations
    return hidden[0] if in_model else hidden[0].index_select(0, microbatch.predictors)


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
    """Switch `model` to packed rows, with training layers where they give the same numbers.

    The result is compared with the model's own forward pass on two short sequences. A model that
    drops the segments on the way to its attention, or changes logits after the head, is refused."""
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
    )

    def gap_to_own() -> float:
        return float((sampled_logprobs(model, packed, temperature=1.0)[0] - expected).abs().max())

    if use_training_layers(model) and gap_to_own() < 1e-3:
        return
    restore_layers(model)
    gap = gap_to_own()
    if not gap < 1e-3:
        raise ConfigError(
            f"{type(model).__name__} gives other logprobs on packed rows than on single ones: they differ by {gap:.3g}, "
            "expected below 1e-3. Its attention does not support packing, or it changes logits after the head; "
            "train another architecture."
        )
