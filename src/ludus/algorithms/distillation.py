"""On-policy distillation (2306.13649): a teacher judges every token that the policy samples.

    A_t = log p_teacher(a_t) - log p(a_t), without gradient

The mean of -A log p then has the gradient of KL(p || p_teacher): the baseline that is left out has
mean 0. This is the reverse divergence, in the states that the policy itself reaches. At the teacher
it is exactly 0. Left out: divergences over the whole vocabulary (less variance, but memory for both
distributions), forward and Jensen-Shannon divergences, and a mix with rewards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ludus.algorithms.algorithm import Tokens
from ludus.config import Section
from ludus.config.pieces import advantage
from ludus.types import Group

if TYPE_CHECKING:
    from torch import Tensor

MAX_LOG_GAP = 20.0
"""A token that the teacher finds impossible must not outweigh a batch."""


def teacher_advantages(tokens: Tokens) -> Tensor:
    return (tokens.reference - tokens.logprobs.detach()).clamp(-MAX_LOG_GAP, MAX_LOG_GAP)


@advantage("teacher", in_loss=teacher_advantages)
def teacher(group: Group, options: Section) -> np.ndarray:
    """0 until the loss, where the teacher's logprobs are known."""
    return np.zeros(len(group.trajectories), dtype=np.float32)
