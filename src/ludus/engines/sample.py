"""Draws tokens from logits. Promise: a token's logprob is exact, in float32, at its temperature."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def draw(logits: Tensor, *, temperatures: Sequence[float], uniforms: Sequence[float]) -> list[tuple[int, float]]:
    """A token and its logprob for each row of `logits` (rows, vocabulary). Temperature 0 is greedy,
    with the logprob of temperature 1. A row with NaN yields a NaN logprob, which the caller must
    refuse. Sums are float64, so that the tail of a large vocabulary keeps its mass."""
    logprobs = log_softmax(logits, temperatures=temperatures)
    greedy = [temperature == 0 for temperature in temperatures]
    if all(greedy):
        tokens = logprobs.argmax(-1, keepdim=True)
    else:
        cumulated = logprobs.exp().cumsum(-1, dtype=torch.float64)
        aims = torch.tensor([[u] for u in uniforms], dtype=torch.float64, device=logits.device) * cumulated[:, -1:]
        tokens = torch.searchsorted(cumulated, aims, right=True).clamp_(max=logits.shape[-1] - 1)
        if any(greedy):
            best = logprobs.argmax(-1, keepdim=True)
            tokens = torch.where(torch.tensor(greedy, device=logits.device)[:, None], best, tokens)
    chosen = logprobs.gather(-1, tokens)
    return [(token, logprob) for (token,), (logprob,) in zip(tokens.tolist(), chosen.tolist(), strict=True)]


def log_softmax(logits: Tensor, *, temperatures: Sequence[float]) -> Tensor:
    logits = logits.float()
    if any(temperature not in (0, 1) for temperature in temperatures):
        divisors = torch.tensor([temperature or 1.0 for temperature in temperatures], device=logits.device)
        logits = logits / divisors[:, None]
    return logits.log_softmax(-1)
