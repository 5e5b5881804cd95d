"""The algorithm of a run, put together from the pieces its config names. Promise: every piece is a pure function with a proof of its own.

    groups ─ shape, filter ─▶ advantage per turn ─▶ normalise over batch or environment ─▶ weight per token ─▶ loss per token + KL - entropy

    L_t = -w_t min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t)
    w_t = min(p_old / p_behaviour, importance_cap)              ratio_base = old: r = p / p_old (decoupled, 2110.00641)
    w_t = 1                                                     ratio_base = behaviour: r = p / p_behaviour (2510.04206)

Defaults: GRPO (2402.03300) with token weights and the decoupled objective. Left out: several optimiser steps per batch. With one step
per batch p_old is p itself, so around `old` the ratio is 1 and the clip idles: the importance weights are what bounds the step there.
A token spoken by another policy than the current one trains like any other, with its own speaker's logprob as p_behaviour, or is masked.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from torch import Tensor

from ludus.algorithms import distillation, gigpo, kl, losses
from ludus.algorithms.advantages import group_advantages, leave_one_out_advantages, mean_of_others
from ludus.algorithms.aggregation import token_weights
from ludus.algorithms.algorithm import Tokens, Values
from ludus.algorithms.credit import Credit, credit, with_targets
from ludus.algorithms.filters import keep, rescaled
from ludus.algorithms.normalisation import whiten, whiten_by
from ludus.algorithms.returns import return_to_go, turn_rewards
from ludus.algorithms.shaping import shaped
from ludus.config import AlgorithmConfig
from ludus.config.algorithm import BY_VALUES
from ludus.errors import TrainerFailed
from ludus.types import CURRENT, Batch, Group, Sequence, Trajectory, frozen_array


@dataclass(frozen=True, slots=True)
class PolicyGradient:
    config: AlgorithmConfig

    def batch(self, groups: Seq[Group], *, values: Values | None = None) -> Batch:
        """An empty batch (no sequences) when the filter keeps no group: there is nothing to learn from it."""
        if self.config.off_policy == "mask":
            groups = [replace(group, trajectories=tuple(map(_own_words, group.trajectories))) for group in groups]
        for group in groups:
            for trajectory in group.trajectories:
                _check(trajectory)
        groups = [shaped(group, config=self.config) for group in groups]
        kept = keep(groups, rule=self.config.filter, share=self.config.filter_share)
        metrics = _metrics(groups, kept)
        if self.config.advantage == "gigpo" and kept:
            metrics["groups/shared_states"] = float(np.mean([gigpo.shared_share(_states(group)) for group in kept]))
        share = len(kept) / max(1, len(groups))
        if self.config.advantage == "archer":
            tokens = [own.astype(np.float32) for own in _asked(values, kept)]
            return Batch(self._sequences(kept, tokens, share=share), groups=kept, metrics=metrics)
        if self.config.advantage not in BY_VALUES:
            tokens = [
                _by_token(t, own)
                for group in kept
                for t, own in zip(group.trajectories, self._advantages(group), strict=True)
            ]
            return Batch(self._sequences(kept, tokens, share=share), groups=kept, metrics=metrics)
        credits = self._credits(kept, values)
        tokens = [own.advantages.astype(np.float32) for own in credits]
        counted = [own.counted for own in credits]
        sequences = self._sequences(kept, tokens, share=share, counted=counted)
        return Batch(with_targets(sequences, credits), groups=kept, metrics=metrics)

    def _credits(self, groups: Seq[Group], values: Values | None) -> list[Credit]:
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        asked = zip(trajectories, _asked(values, groups), strict=True)
        return [credit(trajectory, own, config=self.config) for trajectory, own in asked]

    def _sequences(
        self, groups: Seq[Group], tokens: list[np.ndarray], *, share: float, counted: list[np.ndarray] | None = None
    ) -> tuple[Sequence, ...]:
        """`tokens`: of each trajectory, the advantages of its sampled tokens."""
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        environments = [trajectory.task.environment for trajectory in trajectories]
        tokens = self._normalised(tokens, environments, counted=counted)
        counts = [[sequence.num_sampled for sequence in trajectory.sequences] for trajectory in trajectories]
        weights = token_weights(counts, aggregate=self.config.aggregate, constant=self.config.aggregate_tokens)
        scale = rescaled(share, rescale=self.config.filter_rescale)
        rows = zip(trajectories, tokens, weights, strict=True)
        return tuple(sequence for row in rows for sequence in _weigh(*row, scale=scale))

    def _advantages(self, group: Group) -> list[np.ndarray]:
        """Per trajectory, the advantage of each of its turns (K,)."""
        config, trajectories = self.config, group.trajectories
        if config.advantage == "return_to_go":
            returns = self._returns(group)
            whole = [float(own[0]) if len(own) else 0.0 for own in returns]
            return [own - mean_of_others(whole, i) for i, own in enumerate(returns)]
        rewards = [trajectory.reward for trajectory in trajectories]
        by_trajectory = _trajectory_advantages(rewards, config)
        spread = [np.full(_num_turns(t), a, np.float32) for t, a in zip(trajectories, by_trajectory, strict=True)]
        if config.advantage != "gigpo":
            return spread
        of_state = gigpo.state_advantages(self._returns(group), _states(group), normalise=_of_group(config))
        return [
            own[: len(state)] + np.float32(config.state_weight) * state
            for own, state in zip(spread, of_state, strict=True)
        ]

    def _returns(self, group: Group) -> list[np.ndarray]:
        return [return_to_go(turn_rewards(t), discount=self.config.discount) for t in group.trajectories]

    def _normalised(
        self, tokens: list[np.ndarray], environments: Seq[str], *, counted: list[np.ndarray] | None
    ) -> list[np.ndarray]:
        config = self.config
        if config.normalise == "batch":
            return whiten(tokens, counted=counted)
        if config.task_normalise == "none":
            return tokens
        return whiten_by(tokens, environments, statistics=config.task_normalise, centre=config.task_centre)

    # -------------------------------------------------------------------------------------------- loss

    def loss(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        if config.advantage == "teacher":
            tokens = replace(tokens, advantages=distillation.teacher_advantages(tokens.logprobs, _reference(tokens)))
        if config.kl == "k1":
            penalty = config.kl_weight * kl.estimate(tokens.logprobs, _reference(tokens), estimator="k1").detach()
            tokens = replace(tokens, advantages=tokens.advantages - penalty)
        loss, diagnostics = self._policy_loss(tokens)
        if config.kl in ("k2", "k3"):
            loss = loss + config.kl_weight * kl.estimate(tokens.logprobs, _reference(tokens), estimator=config.kl)
        if config.ratio_base == "old" and config.importance_cap:
            importance = self._importance(tokens)
            loss = loss * importance
            capped = (importance >= config.importance_cap).to(importance.dtype)
            diagnostics |= {"importance": importance, "importance_capped": capped}
        if config.entropy_weight:
            assert tokens.entropies is not None, "an entropy bonus needs the entropies"
            loss = loss - config.entropy_weight * tokens.entropies
        if config.advantage == "teacher":
            diagnostics["teacher_kl"] = -tokens.advantages
        if config.kl != "none":
            distance = kl.estimate(tokens.logprobs, _reference(tokens), estimator=config.kl)
            diagnostics[f"kl_{config.kl}"] = distance.detach()
        return loss, diagnostics

    def _policy_loss(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        config, advantages = self.config, tokens.advantages
        clip = {"low": config.clip_low, "high": config.clip_high}
        ratio = self._ratio(tokens)
        diagnostics = {"ratio": ratio.detach()}
        if config.loss == "clip":
            loss = losses.clipped_surrogate(ratio, advantages, **clip, dual=config.dual_clip)
            diagnostics["clipped"] = losses.clipped_share(ratio.detach(), advantages, **clip)
            if config.dual_clip:
                diagnostics["dual_clipped"] = losses.dual_clipped_share(
                    ratio.detach(), advantages, dual=config.dual_clip
                )
        elif config.loss == "cispo":
            loss = losses.cispo(tokens.logprobs, ratio, advantages, **clip)
            outside = (ratio.detach() > 1 + config.clip_high) | (ratio.detach() < 1 - config.clip_low)
            diagnostics["clipped"] = outside.to(ratio.dtype)
        else:
            loss = -advantages * (tokens.logprobs if config.ratio_base == "old" else ratio)
        diagnostics["logprob_gap"] = (tokens.old_logprobs - tokens.behaviour_logprobs).abs()
        return loss, diagnostics

    def _ratio(self, tokens: Tokens) -> Tensor:
        base = tokens.old_logprobs if self.config.ratio_base == "old" else tokens.behaviour_logprobs
        if self.config.ratio == "token":
            return losses.ratios(tokens.logprobs, base)
        return losses.sequence_ratios(tokens.logprobs, base, rows=_rows(tokens))

    def _importance(self, tokens: Tokens) -> Tensor:
        old, behaviour, cap = tokens.old_logprobs, tokens.behaviour_logprobs, self.config.importance_cap
        if self.config.importance == "token":
            return losses.importance_weights(old, behaviour, cap=cap)
        return losses.sequence_importance_weights(old, behaviour, cap=cap, rows=_rows(tokens))


def _trajectory_advantages(rewards: Seq[float], config: AlgorithmConfig) -> np.ndarray:
    """One number per trajectory of a group."""
    if config.advantage == "leave_one_out":
        return leave_one_out_advantages(rewards)
    if config.advantage == "reward":
        return np.array(rewards, dtype=np.float32)
    if config.advantage == "teacher":
        return np.zeros(len(rewards), dtype=np.float32)  # told in the loss, where the teacher's logprobs are
    return group_advantages(rewards, normalise=_of_group(config))


def _asked(values: Values | None, groups: Seq[Group]) -> list[np.ndarray]:
    assert values is not None, "this advantage needs a critic"
    return values([trajectory for group in groups for trajectory in group.trajectories])


def _of_group(config: AlgorithmConfig) -> Literal["std", "none"]:
    return "std" if config.normalise == "std" else "none"


def _states(group: Group) -> list[list[str]]:
    return [gigpo.states(trajectory) for trajectory in group.trajectories]


def _num_turns(trajectory: Trajectory) -> int:
    """Those its tokens name, too."""
    named = [int(sequence.turns.max()) + 1 for sequence in trajectory.sequences if len(sequence)]
    return max(len(trajectory.turns), *named, 1)


def _by_token(trajectory: Trajectory, turns: np.ndarray) -> np.ndarray:
    """Of all sampled tokens of the trajectory, in order: the advantage of their turn."""
    parts = [turns[sequence.turns[sequence.sampled]] for sequence in trajectory.sequences]
    return np.concatenate([*parts, np.zeros(0, np.float32)]).astype(np.float32)


def _weigh(trajectory: Trajectory, tokens: np.ndarray, weights: Seq[float], *, scale: float) -> list[Sequence]:
    """The sequences in which something was sampled, with their share of `tokens`."""
    weighed, begin = [], 0
    for sequence, weight in zip(trajectory.sequences, weights, strict=True):
        end = begin + sequence.num_sampled
        advantages = np.zeros(len(sequence), dtype=np.float32)
        advantages[sequence.sampled] = tokens[begin:end]
        if end > begin:
            weighed.append(
                replace(
                    sequence,
                    advantages=frozen_array(advantages, np.float32),
                    weights=frozen_array(sequence.sampled * (weight * scale), np.float32),
                )
            )
        begin = end
    return weighed


def _reference(tokens: Tokens) -> Tensor:
    assert tokens.reference_logprobs is not None, "a KL term needs the logprobs of a reference; give the trainer one"
    return tokens.reference_logprobs


def _rows(tokens: Tokens) -> Tensor:
    assert tokens.rows is not None, "a sequence ratio needs to know which sequence a token belongs to"
    return tokens.rows


def _own_words(trajectory: Trajectory) -> Trajectory:
    """Tokens that another policy spoke become context: read, not trained, in no denominator."""
    foreign = [turn.index for turn in trajectory.turns if turn.policy != CURRENT]
    if not foreign:
        return trajectory
    masked = (
        replace(sequence, sampled=frozen_array(sequence.sampled & ~np.isin(sequence.turns, foreign), np.bool_))
        for sequence in trajectory.sequences
    )
    return replace(trajectory, sequences=tuple(masked))


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


def _metrics(groups: Seq[Group], kept: Seq[Group]) -> dict[str, float]:
    """The share of groups that carry gradient, in all and per environment: dropping changes the mix of environments."""
    played, trained = (Counter(group.task.environment for group in some) for some in (groups, kept))
    metrics = {f"groups/kept/{name}": trained[name] / count for name, count in sorted(played.items())}
    return {"groups/kept": len(kept) / len(groups), **metrics} if groups else metrics
