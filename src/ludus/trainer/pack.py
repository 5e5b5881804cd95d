"""From sequences to microbatches: packed rows within a token budget. Promise: deterministic, and every sampled token is in exactly one.

A row holds only what its logprobs need: tokens from the last sampled one on (and the trailing observation) predict nothing.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ludus.models.packed_attention import Segments
from ludus.types import Sequence


@dataclass(frozen=True, slots=True)
class Microbatch:
    """One packed row of N tokens with M sampled tokens to predict. Row position `predictors[m]` predicts token `targets[m]`."""

    ids: Tensor  # int64 (1, N)
    positions: Tensor  # int64 (1, N), from 0 in each sequence
    segments: Segments
    predictors: Tensor  # int64 (M,)
    targets: Tensor  # int64 (M,)
    behaviour_logprobs: Tensor  # float32 (M,)
    advantages: Tensor  # float32 (M,)
    weights: Tensor  # float32 (M,)


def row_length(sequence: Sequence) -> int:
    """Tokens the model must read to predict every sampled token: all before the last sampled one."""
    sampled = np.flatnonzero(sequence.sampled)
    return int(sampled[-1]) if len(sampled) else 0


def pack(lengths: Seq[int], *, budget: int) -> list[list[int]]:
    """Indices per microbatch, first-fit decreasing. A sequence above the budget gets a microbatch of its own; one of length 0, none."""
    bins: list[list[int]] = []
    room: list[int] = []
    for index in sorted((i for i, length in enumerate(lengths) if length), key=lambda i: (-lengths[i], i)):
        place = next((b for b, free in enumerate(room) if free >= lengths[index]), None)
        if place is None:
            bins.append([])
            room.append(budget)
            place = len(bins) - 1
        bins[place].append(index)
        room[place] -= lengths[index]
    return bins


def make_microbatch(sequences: Seq[Sequence], *, device: torch.device | str = "cpu") -> Microbatch:
    assert not any(sequence.sampled[0] for sequence in sequences), "a sampled token needs a prompt before it"
    lengths = [row_length(sequence) for sequence in sequences]
    starts = np.cumsum([0, *lengths[:-1]])
    targets = [np.flatnonzero(sequence.sampled) for sequence in sequences]

    def row(parts: list[np.ndarray], dtype: Any) -> Tensor:
        return torch.from_numpy(np.concatenate(parts).astype(dtype, copy=False)).to(device)

    def sampled(arrays: list[np.ndarray], dtype: Any) -> Tensor:
        return row([array[target] for array, target in zip(arrays, targets, strict=True)], dtype)

    return Microbatch(
        ids=row([s.ids[:n] for s, n in zip(sequences, lengths, strict=True)], np.int64).unsqueeze(0),
        positions=row([np.arange(n) for n in lengths], np.int64).unsqueeze(0),
        segments=Segments.of(lengths, device=device),
        predictors=row([start + target - 1 for start, target in zip(starts, targets, strict=True)], np.int64),
        targets=sampled([s.ids for s in sequences], np.int64),
        behaviour_logprobs=sampled([s.logprobs for s in sequences], np.float32),
        advantages=sampled([_given(s.advantages, "advantages") for s in sequences], np.float32),
        weights=sampled([_given(s.weights, "weights") for s in sequences], np.float32),
    )


def _given(values: np.ndarray | None, name: str) -> np.ndarray:
    assert values is not None, f"a batch's sequences carry {name}; the algorithm fills them in"
    return values
