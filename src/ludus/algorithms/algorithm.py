"""The Algorithm interface: what a group's tokens are worth, and what a token's loss is. Algorithms know no engine and no environment."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from ludus.types import Batch, Group, Trajectory

Values = Callable[[Seq[Trajectory]], list[np.ndarray]]
"""A critic: of each trajectory, the value before every sampled token, in order (M,)."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The sampled tokens of a microbatch, flat (N,). `logprobs` carries the gradient, at the sampling temperature."""

    logprobs: Tensor  # current policy
    old_logprobs: Tensor  # the policy at the start of this step, without gradient
    behaviour_logprobs: Tensor  # what the engine reported
    advantages: Tensor
    weights: Tensor  # the loss is sum(weights * token_loss)
    rows: Tensor | None = None  # int64: which sequence of the microbatch a token belongs to; a sequence is never split
    reference_logprobs: Tensor | None = (
        None  # a frozen reference policy, without gradient; where the trainer was given one
    )
    entropies: Tensor | None = None  # of the current policy, with gradient where the trainer was asked for it


class Algorithm(Protocol):
    def batch(self, groups: Seq[Group], *, values: Values | None = None) -> Batch:
        """Sequences with advantages and weights. Deterministic in the order of groups, and pure but for asking `values`, which are
        given where the run has a critic."""
        ...

    def loss(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss per token (N,), and per-token diagnostics (N,) that the trainer averages over the batch."""
        ...
