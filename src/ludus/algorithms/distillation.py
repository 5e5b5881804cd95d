"""On-policy distillation (2306.13649): the policy plays, and every token it sampled is judged by a teacher.

    A_t = log p_teacher(a_t) - log p(a_t), without gradient

-A log p then has the gradient of KL(p || p_teacher) as its mean, because the baseline that is left out has mean 0: the reverse divergence,
which asks the policy to say only what the teacher would say, where the policy itself has led. At the teacher it is exactly 0.
Left out: divergences over the whole vocabulary (less variance, and memory for both distributions), forward and Jensen-Shannon ones, and
a mix with rewards.
"""

from __future__ import annotations

from torch import Tensor

MAX_LOG_GAP = 20.0
"""A token that the teacher finds impossible must not outweigh a batch."""


def teacher_advantages(logprobs: Tensor, teacher: Tensor) -> Tensor:
    return (teacher - logprobs.detach()).clamp(-MAX_LOG_GAP, MAX_LOG_GAP)
