"""The algorithm of a run, composed from the pieces that its config names.

    groups ─ shape, filter ─▶ advantage ─▶ normalise ─▶ weights ─▶ loss per token + KL - entropy

    L_t = -w_t min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t)
    w_t = min(p_old / p_behaviour, importance_cap)    ratio_base = old: r = p / p_old (2110.00641)
    w_t = 1       ratio_base = behaviour: r = p / p_behaviour (2510.04206)

Defaults: GRPO (2402.03300) with token weights and the decoupled objective. Left out: several
optimiser steps per batch. With one step per batch p_old is p itself, so with `ratio_base = old` the
ratio is 1, the clip has no effect, and the importance weights bound the step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from ludus.algorithms.algorithm import Tokens, Values
from ludus.algorithms.credit import Credit, placed, sampled_turns, with_targets
from ludus.algorithms.filters import rescaled
from ludus.algorithms.normalisation import whiten
from ludus.config import AlgorithmConfig
from ludus.config.pieces import KINDS
from ludus.errors import TrainerFailed
from ludus.types import CURRENT, Batch, Group, Sequence, Trajectory, frozen_array

if TYPE_CHECKING:
    from torch import Tensor


class PolicyGradient:
    def __init__(self, config: AlgorithmConfig) -> None:
        self.config, self._advantage = config, config.advantage_piece
        self._estimate, self._keep, self._loss = map(config.function, ("advantage", "filter", "loss"))
        self._shapers = [config.function("rewards", name) for name in config.rewards]
        self._normalise_by_task, self._weigh = map(config.function, ("task_normalise", "aggregate"))
        self._importance, self._divergence = map(config.function, ("ratio_base", "kl"))
        self.needs_values = bool(self._advantage.critics)
        self.trains_critic = self._advantage.trains_critic

    def wants(self, group: Group) -> bool:
        return not KINDS["filter"].find(self.config.filter).replaces or bool(self._keep([self.shaped(group)]))

    def shaped(self, group: Group) -> Group:
        for shape in self._shapers:
            group = shape(group)
        return group

    def batch(self, groups: Seq[Group], *, values: Values | None = None) -> Batch:
        """The batch is empty (no sequences) if the filter keeps no group."""
        if self.config.off_policy == "mask":
            groups = [replace(group, trajectories=tuple(map(_on_policy, group.trajectories))) for group in groups]
        for group in groups:
            for trajectory in group.trajectories:
                _check(trajectory)
        groups = [self.shaped(group) for group in groups]
        kept = tuple(self._keep(groups))
        metrics = _metrics(groups, kept)
        if self._advantage.metrics and kept:
            metrics |= self._advantage.metrics(kept)
        trajectories = [trajectory for group in kept for trajectory in group.trajectories]
        estimates = list(self._estimates(kept, values))
        given = [own for own in estimates if isinstance(own, Credit)]
        assert len(given) in (0, len(estimates)), "a Credit for every trajectory, or for none"
        tokens = [self._by_token(*each) for each in zip(trajectories, estimates, strict=True)]
        if self.config.get("normalise") == "batch":
            tokens = whiten(tokens, counted=[credit.counted for credit in given] or None)
        else:
            tokens = self._normalise_by_task(tokens, [t.task.environment for t in trajectories])
        scale = rescaled(len(kept) / max(1, len(groups)), rescale=self.config.get("filter_rescale", "none"))
        counts = [[sequence.num_sampled for sequence in trajectory.sequences] for trajectory in trajectories]
        rows = zip(trajectories, tokens, self._weigh(counts), strict=True)
        sequences = tuple(sequence for row in rows for sequence in _weighed(*row, scale=scale))
        return Batch(with_targets(sequences, given) if given else sequences, groups=kept, metrics=metrics)

    def _estimates(self, groups: Seq[Group], values: Values | None) -> Iterator[Any]:
        """Per trajectory, what the advantage piece returns."""
        asked: Iterator[np.ndarray] = iter(())
        if self.needs_values:
            assert values is not None, "this advantage needs a critic"
            asked = iter(values([trajectory for group in groups for trajectory in group.trajectories]))
        for group in groups:
            size = len(group.trajectories)
            given = {"values": list(islice(asked, size))} if self.needs_values else {}
            found = self._estimate(group, **given)
            if len(found) != size:
                raise TrainerFailed(
                    f"advantage {self._advantage.name!r} returned {len(found)} estimates for a group of {size} "
                    "trajectories; expected one for each"
                )
            yield from found

    def _by_token(self, trajectory: Trajectory, estimate: Any) -> np.ndarray:
        """(M,) the advantage of each sampled token."""
        if isinstance(estimate, Credit):
            return estimate.advantages.astype(np.float32)
        turns, estimate = sampled_turns(trajectory), np.asarray(estimate)
        if not estimate.ndim:
            return np.full(len(turns), estimate, np.float32)
        per, wanted = self._advantage.per, len(turns)
        if per == "turn":
            wanted = max(len(trajectory.turns), int(turns.max(initial=-1)) + 1)
        if len(estimate) != wanted:
            raise TrainerFailed(
                f"advantage {self._advantage.name!r} returned {len(estimate)} numbers for trajectory {trajectory.id}; "
                f"expected {wanted}, one per {'sampled token' if per == 'token' else 'turn'}"
            )
        tokens: np.ndarray = estimate if per == "token" else estimate[turns]
        return tokens.astype(np.float32)

    def loss(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        kl, kl_weight = self.config.kl, self.config.get("kl_weight")
        if self._advantage.in_loss:
            tokens = replace(tokens, advantages=self._advantage.in_loss(tokens))
        distance = None if kl == "none" else self._divergence(tokens.logprobs, tokens.reference)
        if distance is not None and kl == "k1":
            tokens = replace(tokens, advantages=tokens.advantages - kl_weight * distance.detach())
        found = self._loss(tokens)
        loss, diagnostics = found if isinstance(found, tuple) else (found, {})
        diagnostics["logprob_gap"] = (tokens.old_logprobs - tokens.behaviour_logprobs).abs()
        if distance is not None and kl != "k1":
            loss = loss + kl_weight * distance
        importance = self._importance(tokens)
        if importance is not None:
            loss = loss * importance
            capped = importance >= self.config.get("importance_cap")
            diagnostics |= {"importance": importance, "importance_capped": capped.to(importance.dtype)}
        if self.config.entropy_weight:
            assert tokens.entropies is not None, "an entropy bonus needs the entropies"
            loss = loss - self.config.entropy_weight * tokens.entropies
        if self._advantage.in_loss:
            diagnostics[f"{self._advantage.name}_kl"] = -tokens.advantages
        if distance is not None:
            diagnostics[f"kl_{kl}"] = distance.detach()
        return loss, diagnostics


def _weighed(trajectory: Trajectory, tokens: np.ndarray, weights: Seq[float], *, scale: float) -> Iterator[Sequence]:
    """The sequences in which something was sampled, with their share of `tokens`."""
    begin = 0
    for sequence, weight in zip(trajectory.sequences, weights, strict=True):
        end = begin + sequence.num_sampled
        if end > begin:
            own = frozen_array(sequence.sampled * (weight * scale), np.float32)
            yield replace(sequence, advantages=placed(tokens[begin:end], sequence), weights=own)
        begin = end


def _on_policy(trajectory: Trajectory) -> Trajectory:
    """Tokens of other policies become context: neither trained nor counted in a denominator."""
    if all(turn.policy == CURRENT for turn in trajectory.turns):
        return trajectory
    pairs = zip(trajectory.sequences, trajectory.sampled_by_current, strict=True)
    masked = (replace(sequence, sampled=frozen_array(own, np.bool_)) for sequence, own in pairs)
    return replace(trajectory, sequences=tuple(masked))


def _check(trajectory: Trajectory) -> None:
    if not math.isfinite(trajectory.reward):
        raise TrainerFailed(
            f"trajectory {trajectory.id} of {trajectory.task.id} has reward {trajectory.reward}; expected a finite "
            "number. Failed sessions belong in Group.failed, and an environment must not return NaN."
        )
    for index, sequence in enumerate(trajectory.sequences):
        missing = int((sequence.sampled & ~np.isfinite(sequence.logprobs)).sum())
        if missing:
            raise TrainerFailed(
                f"sequence {index} of trajectory {trajectory.id} lacks the logprob of {missing} of its "
                f"{sequence.num_sampled} sampled tokens; expected one for each. Use an engine that reports the "
                "logprobs of the tokens it samples."
            )


def _metrics(groups: Seq[Group], kept: Seq[Group]) -> dict[str, float]:
    """The share of groups that are trained, in all and per environment."""
    played, trained = (Counter(group.task.environment for group in some) for some in (groups, kept))
    metrics = {f"groups/kept/{name}": trained[name] / count for name, count in sorted(played.items())}
    return {"groups/kept": len(kept) / len(groups), **metrics} if groups else metrics
