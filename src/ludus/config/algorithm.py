"""[algorithm] and [critic]: how a run learns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from ludus.config.section import Section

BY_VALUES = ("gae", "turn_gae", "bilevel_gae")
"""Advantages that a critic's values are needed for."""


class CriticConfig(Section):
    kind: Literal["none", "head", "model", "archer"] = "none"
    """head: a layer on the policy's hidden states, which does not move them; model: a model of its own, begun as the policy's;
    archer: two Qs and two Vs of whole turns, with targets, from a replay."""
    lr: float = Field(default=1e-4, gt=0)
    """Of its own optimiser, without warm-up."""
    steps: int = Field(default=1, gt=0)
    """Optimiser steps that it takes on the batch of one step of the policy."""
    warmup: int = Field(default=0, ge=0)
    """Steps at the start in which the critic learns alone and the policy stays as it is (20 in ArCHer)."""
    clip: float = Field(default=0.0, ge=0)
    """How far a value may move on one batch and still gain by it; 0: as far as it likes."""
    replay: int = Field(default=10_000, gt=0)
    """archer: turns kept, the newest; they are part of a checkpoint."""
    batch: int = Field(default=256, gt=0)
    """archer: turns of one of its optimiser steps."""
    target_rate: float = Field(default=0.1, gt=0, le=1)
    """archer: share of a network that goes into its target after each of them."""
    baseline: bool = False
    """archer: take off a token's advantage what the words before it let expect, so that none is praised for what was certain already."""

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> CriticConfig:
        for name, field in type(self).model_fields.items():
            if self.kind == "none" and getattr(self, name) != field.default:
                raise ValueError(f"critic.{name} counts only with a critic; set critic.kind, or leave it out")
        for name in ("replay", "batch", "target_rate", "baseline"):
            if self.kind != "archer" and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"critic.{name} counts only with critic.kind 'archer'; leave it out")
        if self.clip and self.kind == "archer":
            raise ValueError("critic.clip has no part in ArCHer; leave it out")
        if self.clip and self.steps == 1:
            raise ValueError(
                "critic.clip counts only with critic.steps above 1: in the first of them no value has moved yet"
            )
        return self


class AlgorithmConfig(Section):
    advantage: Literal[
        "group",
        "leave_one_out",
        "reward",
        "return_to_go",
        "gigpo",
        "gae",
        "turn_gae",
        "bilevel_gae",
        "archer",
        "teacher",
    ] = "group"
    """What a trajectory's tokens are worth: its reward against its group (GRPO), against the others of it (RLOO), or as it is (REINFORCE);
    return_to_go: the discounted rewards from the token's turn on, against the others; gigpo: group, plus turns from equal states.
    With a critic: gae over tokens (PPO), turn_gae over turns (Agent-R1), bilevel_gae over turns and inside each over its tokens;
    archer: an off-policy critic's Q of the turn, less its V.
    teacher: no reward counts, but how much likelier than the policy the teacher finds the token (on-policy distillation)."""
    normalise: Literal["std", "none", "batch"] = "std"
    """std divides by the group's standard deviation (GRPO); none only centres (Dr. GRPO); batch whitens over the batch's tokens
    (REINFORCE++). Left out: std for group and gigpo, batch for those with a critic (turn_gae: over turns), none for the others."""
    discount: float = Field(default=1.0, gt=0, le=1)
    """Per turn, of return_to_go, gigpo, turn_gae, bilevel_gae and archer; per token, of gae."""
    gae_lambda: float = Field(default=1.0, ge=0, le=1)
    """lambda of the three with a critic: 1 counts on what was earned, 0 on the critic's next value."""
    bootstrap: bool = False
    """Those with a critic: a session cut by a limit goes on with the critic's last value, as if it had not ended."""
    unfinished_reward: float | None = None
    """The whole reward of a session that ended without `done`, in place of what it earned (AgentRL: -0.2); unset: what it earned."""
    overlong: tuple[int, int] | None = None
    """Off the reward of a session (DAPO): nothing up to the first number of sampled tokens, then more and more, 1 from the second on."""
    state_weight: float = Field(default=1.0, gt=0)
    """gigpo: weight of the comparison between turns from equal states, beside the one between trajectories."""
    task_normalise: Literal["none", "token", "trajectory"] = "none"
    """Whitens advantages per environment (AgentRL), with every token counting once, or every trajectory."""
    task_centre: bool = True
    """task_normalise: false only scales, so that signs stay and a group of equal rewards stays at 0."""
    filter: Literal["none", "zero_variance", "dynamic", "top_share", "top_p"] = "zero_variance"
    """Which groups are trained: all; those whose rewards differ; the same, with others played in their place (DAPO); the filter_share
    of groups with the greatest reward std (StarPO-S); the greatest that hold filter_share of all std (RAGEN-2). Left out, it is none
    where a group of equal rewards has a gradient: reward, return_to_go, gigpo, and those with a critic."""
    filter_share: float = Field(default=1.0, gt=0, le=1)
    """top_share: 0.25 in StarPO-S; top_p: 0.9 in RAGEN-2."""
    filter_rescale: Literal["none", "linear", "sqrt"] = "none"
    """Multiplies the loss with the share of groups kept, or its root, so that few groups make a small step."""
    aggregate: Literal["token", "sequence", "trajectory", "constant"] = "token"
    """token: every sampled token of the batch weighs the same; trajectory: every trajectory does, however long or forked; sequence: and
    inside it every sequence; constant: sum of tokens by trajectories x aggregate_tokens (Dr. GRPO)."""
    aggregate_tokens: int = Field(default=0, ge=0)
    """aggregate = constant: what a trajectory's sum of tokens is divided by, e.g. the most it may sample."""
    loss: Literal["clip", "cispo", "reinforce"] = "clip"
    """Clipped surrogate (PPO); clipped weight on every token's log-likelihood (CISPO); the plain policy gradient."""
    ratio: Literal["token", "sequence"] = "token"
    """sequence: one ratio per sequence, the geometric mean of its tokens' (GSPO)."""
    clip_low: float = Field(default=0.2, ge=0, le=1)
    clip_high: float = Field(default=0.2, ge=0)
    dual_clip: float = Field(default=0.0, ge=0)
    """Bounds the loss of a bad action to this many times its advantage; above 1, 3 is usual; 0 switches it off."""
    ratio_base: Literal["old", "behaviour"] = "old"
    """Clip around the policy at the start of the step (decoupled, with importance weights), or around what the engine reported."""
    importance: Literal["token", "sequence"] = "token"
    """ratio_base = old: one importance weight per token, or the product over the sequence."""
    importance_cap: float = Field(default=2.0, ge=0)
    """ratio_base = old: weights min(p_old / p_behaviour, cap), for staleness and the engine's rounding; 0 switches them off."""
    kl: Literal["none", "k1", "k2", "k3"] = "none"
    """Distance to the model the run started with: taken off the advantage (k1), or a loss term (k2, k3)."""
    kl_weight: float = Field(default=0.0, ge=0)
    off_policy: Literal["train", "mask"] = "train"
    """Tokens of [cross_policy] other than the current policy: trained with their own speaker's logprob as the behaviour policy, or left out."""
    entropy_weight: float = Field(default=0.0, ge=0)
    """Bonus for the entropy of the next-token distribution."""

    @model_validator(mode="before")
    @classmethod
    def _what_follows(cls, data: Any) -> Any:
        """Defaults that hang on another key, written out so that the resolved run says what happens, and can be read back."""
        if not isinstance(data, Mapping):
            return data
        follows: dict[str, Any] = {}
        if data.get("ratio_base") == "behaviour":
            follows["importance_cap"] = 0.0
        if data.get("advantage") in ("leave_one_out", "reward", "return_to_go", "archer", "teacher"):
            follows["normalise"] = "none"
        if data.get("advantage") in BY_VALUES:
            follows["normalise"] = "batch"
        if data.get("advantage") in ("reward", "return_to_go", "gigpo", "archer", "teacher", *BY_VALUES):
            follows["filter"] = "none"
        return follows | dict(data)

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> AlgorithmConfig:
        """A key that the others switch off is refused: (it is set, where it counts, what counts)."""
        default = {name: field.default for name, field in type(self).model_fields.items()}
        rules = [
            (
                "importance_cap",
                0.0,
                self.ratio_base == "old",
                "ratio_base 'old'; around 'behaviour' the ratio itself holds the correction",
            ),
            ("importance", "token", self.importance_cap > 0, "an importance_cap"),
            (
                "discount",
                1.0,
                self.advantage in ("return_to_go", "gigpo", "archer", *BY_VALUES),
                "advantage 'return_to_go', 'gigpo' or one with a critic",
            ),
            ("gae_lambda", 1.0, self.advantage in BY_VALUES, "advantage 'gae', 'turn_gae' or 'bilevel_gae'"),
            ("bootstrap", False, self.advantage in BY_VALUES, "advantage 'gae', 'turn_gae' or 'bilevel_gae'"),
            ("state_weight", 1.0, self.advantage == "gigpo", "advantage 'gigpo'"),
            ("task_centre", True, self.task_normalise != "none", "task_normalise"),
            ("filter_share", 1.0, self.filter in ("top_share", "top_p"), "filter 'top_share' or 'top_p'"),
            ("filter_rescale", "none", self.filter != "none", "a filter"),
            ("aggregate_tokens", 0, self.aggregate == "constant", "aggregate 'constant'"),
            ("ratio", "token", self.loss == "clip", "loss 'clip'"),
            ("dual_clip", 0.0, self.loss == "clip", "loss 'clip'"),
            ("clip_low", default["clip_low"], self.loss != "reinforce", "loss 'clip' or 'cispo'"),
            ("clip_high", default["clip_high"], self.loss != "reinforce", "loss 'clip' or 'cispo'"),
            ("kl_weight", 0.0, self.kl != "none", "kl 'k1', 'k2' or 'k3'"),
        ]
        for key, off, counts, where in rules:
            if getattr(self, key) != off and not counts:
                raise ValueError(
                    f"algorithm.{key} is {getattr(self, key)!r}, which counts only with {where}; leave it out"
                )
        return self

    @model_validator(mode="after")
    def _goes_together(self) -> AlgorithmConfig:
        if self.normalise == "std" and self.advantage not in ("group", "gigpo"):
            raise ValueError(
                f"algorithm.normalise is 'std' with advantage {self.advantage!r}, which has no group deviation; use none or batch"
            )
        if self.advantage == "teacher" and (self.normalise != "none" or self.task_normalise != "none"):
            raise ValueError(
                "algorithm.normalise has nothing to do with advantage 'teacher': it is known in the loss only; leave it out"
            )
        if self.advantage == "teacher" and self.kl != "none":
            raise ValueError(
                "algorithm.kl with advantage 'teacher', which is a distance to the teacher already; leave it out"
            )
        if self.normalise == "batch" and self.task_normalise != "none":
            raise ValueError("algorithm.normalise is 'batch' with task_normalise, which would undo it; use one of them")
        if self.filter in ("top_share", "top_p") and self.filter_share == 1.0:
            raise ValueError(
                f"algorithm.filter is {self.filter!r} without filter_share; StarPO-S keeps 0.25, RAGEN-2's top_p 0.9"
            )
        if self.aggregate == "constant" and not self.aggregate_tokens:
            raise ValueError("algorithm.aggregate is 'constant' without aggregate_tokens, the constant")
        if 0 < self.dual_clip <= 1 + self.clip_high:
            raise ValueError(
                f"algorithm.dual_clip is {self.dual_clip}, inside the clip at {1 + self.clip_high:g}; 3 is usual"
            )
        if self.overlong is not None and not 0 <= self.overlong[0] < self.overlong[1]:
            raise ValueError(
                f"algorithm.overlong is {list(self.overlong)}; expected two token counts, the first below the second"
            )
        if self.kl != "none" and not self.kl_weight:
            raise ValueError(f"algorithm.kl is {self.kl!r} without kl_weight, so that it would count for nothing")
        return self
