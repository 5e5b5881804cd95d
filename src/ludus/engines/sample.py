"""Drawing tokens. Promise: the noise of a token is a function of seed and position alone, and its logprob is exact at its temperature."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def noise(seed: int, *, start: int, count: int) -> np.ndarray:
    """`count` numbers in [0, 1), one for each position from `start` on: SplitMix64 in counter mode, so any block can be made alone."""
    origin = int(_mix(np.array([seed & _MASK], dtype=np.uint64))[0])
    first = (origin + _GOLDEN * (start + 1)) & _MASK
    states = np.uint64(first) + np.uint64(_GOLDEN) * np.arange(count, dtype=np.uint64)
    return np.asarray((_mix(states) >> np.uint64(11)) * 2.0**-53)


def _mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def draw(logits: Tensor, *, temperatures: list[float], uniforms: list[float]) -> tuple[list[int], list[float]]:
    """One token and its logprob for each row of `logits` (rows, vocabulary). Temperature 0 is greedy, its logprob that of temperature 1.

    Inverse transform sampling: one number a token, where Gumbel noise would need one for each entry of the vocabulary. The sums are
    float64, so that the tail of a large vocabulary keeps its mass. A row with NaN yields a NaN logprob, which the caller must refuse.
    """
    logprobs = log_softmax(logits, temperatures=temperatures)
    greedy = [temperature == 0 for temperature in temperatures]
    if all(greedy):
        tokens = logprobs.argmax(-1)
    else:
        cumulated = logprobs.exp().cumsum(-1, dtype=torch.float64)
        aims = torch.tensor(uniforms, dtype=torch.float64, device=logits.device) * cumulated[:, -1]
        tokens = torch.searchsorted(cumulated, aims[:, None], right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
        if any(greedy):
            tokens = torch.where(torch.tensor(greedy, device=logits.device), logprobs.argmax(-1), tokens)
    chosen = logprobs.gather(-1, tokens[:, None])[:, 0]
    return tokens.tolist(), chosen.tolist()


def log_softmax(logits: Tensor, *, temperatures: list[float]) -> Tensor:
    logits = logits.float()
    if any(temperature not in (0, 1) for temperature in temperatures):
        logits = (
            logits / torch.tensor([temperature or 1.0 for temperature in temperatures], device=logits.device)[:, None]
        )
    return logits.log_softmax(-1)
