"""GRPO (2402.03300) with the choices its successors made, each a knob.

    A_i = (R_i - mean_G) / std_G                 std over n; normalise = none leaves it out (Dr. GRPO, 2503.20783)
    L_t = -w_t min(r_t A_i, clip(r_t, 1 - clip_low, 1 + clip_high) A_i)
    w_t = min(p_old / p_behaviour, importance_cap)              centre = old: r = p / p_old (decoupled, 2110.00641)
    w_t = 1                                                     centre = behaviour: r = p / p_behaviour (2510.04206)

The sum runs over the sampled tokens of the batch with weights that sum to 1: every token alike (DAPO's token mean, 2503.14476) or
every trajectory alike. Groups without a difference in reward are dropped, or weigh in with advantage 0.

Left out: KL to a reference (DAPO and Dr. GRPO drop it too), dual clip, several optimiser steps per batch. With one step per batch
p_old is p itself, so around `old` the ratio is 1 and the clip idles: the importance weights are what bounds the step there.
A token spoken by another policy than the current one trains like any other, weighed by its own speaker's logprob.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from ludus.algorithms.advantages import differs, group_advantages, trajectory_weights
from ludus.algorithms.algorithm import Tokens
from ludus.algorithms.losses import clipped_share, clipped_surrogate, importance_weights, ratios
from ludus.config import AlgorithmConfig
from ludus.errors import TrainerFailed
from ludus.types import Batch, Group, Sequence, Trajectory, frozen_array


@dataclass(frozen=True, slots=True)
class Grpo:
    config: AlgorithmConfig

    def batch(self, groups: Seq[Group]) -> Batch:
        """An empty batch (no sequences) when no group differs in reward: there is nothing to learn from it."""
        for group in groups:
            for trajectory in group.trajectories:
                _check(trajectory)
        kept = tuple(group for group in groups if not self.config.drop_zero_variance or _differs(group))
        return Batch(self._sequences(kept), groups=kept, metrics=_metrics(groups, kept))

    def loss(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        clip = {"low": self.config.clip_low, "high": self.config.clip_high}
        old = self.config.centre == "old"
        ratio = ratios(tokens.logprobs, tokens.old_logprobs if old else tokens.behaviour_logprobs)
        loss = clipped_surrogate(ratio, tokens.advantages, **clip)
        diagnostics = {
            "ratio": ratio.detach(),
            "clipped": clipped_share(ratio.detach(), tokens.advantages, **clip),
            "logprob_gap": (tokens.old_logprobs - tokens.behaviour_logprobs).abs(),
        }
        cap = self.config.importance_cap
        if old and cap:
            importance = importance_weights(tokens.old_logprobs, tokens.behaviour_logprobs, cap=cap)
            loss = loss * importance
            diagnostics |= {"importance": importance, "importance_capped": (importance >= cap).to(importance.dtype)}
        return loss, diagnostics

    def _sequences(self, groups: Seq[Group]) -> tuple[Sequence, ...]:
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        advantages = [advantage for group in groups for advantage in self._advantages(group)]
        counts = [sum(sequence.num_sampled for sequence in trajectory.sequences) for trajectory in trajectories]
        weights = trajectory_weights(counts, aggregate=self.config.aggregate)
        return tuple(
            _weigh(sequence, advantage=advantage, weight=weight)
            for trajectory, advantage, weight in zip(trajectories, advantages, weights, strict=True)
            for sequence in trajectory.sequences
            if sequence.num_sampled
        )

    def _advantages(self, group: Group) -> np.ndarray:
        return group_advantages(
            [trajectory.reward for trajectory in group.trajectories], normalise=self.config.normalise
        )


def _weigh(sequence: Sequence, *, advantage: float, weight: float) -> Sequence:
    return replace(
        sequence,
        advantages=frozen_array(sequence.sampled * advantage, np.float32),
        weights=frozen_array(sequence.sampled * weight, np.float32),
    )


def _check(trajectory: Trajectory) -> None:
    if not math.isfinite(trajectory.reward):
        raise TrainerFailed(
            f"trajectory {trajectory.id} of {trajectory.task.id} has reward {trajectory.reward}; expected a finite number. "
            "Failed sessions belong in Group.failed, and an environment must not return NaN."
        )
    for index, sequence in enumerate(trajectory.sequences):
        missing = int((sequence.sampled & ~np.isfinite(sequence.logprobs)).sum())
        if missing:
            raise TrainerFailed(
                f"sequence {index} of trajectory {trajectory.id} lacks the logprob of {missing} of its {sequence.num_sampled} sampled "
                "tokens; expected one for each. Use an engine that reports the logprobs of the tokens it samples."
            )


def _differs(group: Group) -> bool:
    return differs([trajectory.reward for trajectory in group.trajectories])


def _metrics(groups: Seq[Group], kept: Seq[Group]) -> dict[str, float]:
    """The share of groups that carry gradient, in all and per environment: dropping changes the mix of environments."""
    played, trained = (Counter(group.task.environment for group in some) for some in (groups, kept))
    metrics = {f"groups/kept/{name}": trained[name] / count for name, count in sorted(played.items())}
    return {"groups/kept": len(kept) / len(groups), **metrics} if groups else metrics
