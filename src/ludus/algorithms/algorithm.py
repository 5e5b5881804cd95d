"""The Algorithm interface: what a group's tokens are worth, and what a token's loss is.

Algorithms know no engine and no environment, and this package imports no torch: tensors bring their
own methods, so a run file can be checked without it.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ludus.types import Batch, Group, Trajectory

if TYPE_CHECKING:
    from torch import Tensor


Values = Callable[[Seq[Trajectory]], list[np.ndarray]]
"""A critic: per trajectory, the value before every sampled token, in order (M,). Where
`Algorithm.trains_critic` is True, this call trains it before it answers."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The sampled tokens of a microbatch, flat (N,), at the sampling temperature."""

    logprobs: Tensor  # current policy, with gradient
    old_logprobs: Tensor  # the policy at the start of this step, without gradient
    behaviour_logprobs: Tensor  # what the engine reported
    advantages: Tensor
    weights: Tensor  # the loss is sum(weights * token_loss)
    rows: Tensor | None = None  # int64: the token's sequence; a microbatch holds it whole
    reference_logprobs: Tensor | None = None  # a frozen reference policy, if the trainer has one
    entropies: Tensor | None = None  # of the current policy, with gradient, if computed

    @property
    def reference(self) -> Tensor:
        assert self.reference_logprobs is not None, "a KL term needs a reference; give the trainer one"
        return self.reference_logprobs


class Algorithm(Protocol):
    needs_values: bool
    """Whether `batch` must be given `values`."""
    trains_critic: bool
    """Whether `batch` trains the critic by asking for values, so that it has an effect and must be
    called once per batch, in the trainer's thread. Otherwise `batch` is pure."""

    def wants(self, group: Group) -> bool:
        """False: the loop plays another group in its place."""

    def batch(self, groups: Seq[Group], *, values: Values | None = None) -> Batch:
        """Sequences with advantages and weights, deterministic in the order of groups."""

    def loss(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss per token (N,), and per-token diagnostics (N,), which the trainer averages."""
