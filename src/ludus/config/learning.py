"""How a run learns: the knobs of [algorithm], [curriculum], [horizons] and [cross_policy], a part of `config`'s tree.

Promise: a key that the others switch off is refused, and what follows from another key is written out in the resolved run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Python takes it for 1: steps = true would be a run of one step."""
        wanted = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and {int, float} & {wanted, *get_args(wanted)}:
            raise ValueError(f"expected a number (got {str(value).lower()})")
        return value


BY_VALUES = ("gae", "turn_gae", "bilevel_gae")
"""Advantages that a critic's values are needed for."""


class CurriculumConfig(Section):
    tasks: Literal["uniform", "replay"] = "uniform"
    """uniform: every task once per epoch; replay: prioritised level replay, by what the task's last group showed."""
    score: Literal["learnability", "advantage", "positive_value_loss"] = "learnability"
    """replay: success rate x failure rate; the mean distance of rewards from their group's mean; or by how much actions did better than
    the critic had expected (with [critic] of kind head or model)."""
    fresh: float = Field(default=0.5, ge=0, le=1)
    """replay: chance that a task comes which was never drawn, while there are any."""
    rank_temperature: float = Field(default=1.0, gt=0)
    """replay: chances fall with rank^(-1 / this); smaller is greedier."""
    staleness_share: float = Field(default=0.1, gt=0, le=1)
    """replay: share of the chances that goes by how long a task was not played, so that all are revisited."""
    mix: Literal["weights", "tokens", "success"] = "weights"
    """Between environments, by weight: equal shares of groups, of trained tokens, or more of what is neither solved nor hopeless."""

    @model_validator(mode="after")
    def _replay_alone_has_scores(self) -> CurriculumConfig:
        for key in ("score", "fresh", "rank_temperature", "staleness_share"):
            if self.tasks != "replay" and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"curriculum.{key} counts only with curriculum.tasks 'replay'; leave it out")
        return self


class HorizonConfig(Section):
    turns: list[int] = Field(min_length=1)
    """Limits on the turns of a session, one after the other, as in [5, 8, 10]."""
    every: int = Field(default=0, ge=0)
    """Optimiser steps until the next limit (ScalingInter)."""
    success: float | None = Field(default=None, gt=0, le=1)
    """Instead: the share of the last `window` trajectories that must have succeeded for the next limit."""
    window: int = Field(default=64, gt=0)

    @model_validator(mode="after")
    def _one_rule(self) -> HorizonConfig:
        if min(self.turns) < 1:
            raise ValueError(f"turns is {self.turns}; expected limits of at least 1")
        if bool(self.every) == (self.success is not None):
            raise ValueError(
                "a horizon needs `every` (steps per limit) or `success` (share that succeeds), and one of them only"
            )
        if self.every and self.window != 64:
            raise ValueError("window counts only with `success`; leave it out")
        return self


def refuse_password(url: str, *, key: str) -> None:
    """A URL is stored with the run and stands in messages, so it holds no secret."""
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ValueError(f"{key} holds a password, which would be stored with the run; a key goes into LUDUS_API_KEY")


class OutsideConfig(Section):
    url: str = Field(pattern=r"^https?://")
    """Base URL of an OpenAI-compatible endpoint, as in engine.url. A key, where one is wanted: LUDUS_API_KEY."""
    chance: float = Field(gt=0, lt=1)
    """Chance that it speaks."""
    kind: Literal["chat", "server"] = "chat"
    """chat: its words are written in the policy's tokens and have no logprobs, so they can only be masked; server: one with the policy's
    own tokenizer that returns ids and logprobs, which may be trained on too."""
    model: str = ""
    """Which of the endpoint's models; empty: the only one it serves."""

    @model_validator(mode="after")
    def _holds_no_secret(self) -> OutsideConfig:
        refuse_password(self.url, key="url")
        return self


OWN_NAMES = ("current", "stale", "reference", "evaluation", "solver")
"""Policies that an outside model may not be named after."""


class CrossPolicyConfig(Section):
    stale: float = Field(default=0.0, ge=0, lt=1)
    """Chance that an older copy of the policy speaks (cross-policy sampling, 0.25 in AgentRL). Evaluation is always by the newest."""
    stale_every: int = Field(default=25, gt=0)
    """Optimiser steps between two refreshes of that copy."""
    reference: float = Field(default=0.0, ge=0, lt=1)
    """Chance that the model the run started with speaks."""
    outside: dict[str, OutsideConfig] = {}
    """Models behind endpoints, by the name that their turns are stored with."""
    draw: Literal["turn", "session"] = "turn"
    """Who speaks is drawn for every turn, or once for a whole session."""
    schedule: list[tuple[int, float]] = []
    """Points (optimiser step, part of these chances that counts then), linear between them: [[0, 1.0], [200, 0.0]]; empty: all of them."""

    @property
    def others(self) -> dict[str, float]:
        """The policies that speak beside the current one, with their chances."""
        ours = {name: chance for name, chance in (("stale", self.stale), ("reference", self.reference)) if chance}
        return ours | {name: outside.chance for name, outside in self.outside.items()}

    @property
    def in_words(self) -> list[str]:
        """Those of which nothing but words can be had."""
        return [name for name, outside in self.outside.items() if outside.kind == "chat"]

    @model_validator(mode="after")
    def _somebody_else_speaks(self) -> CrossPolicyConfig:
        if sum(self.others.values()) >= 1:
            raise ValueError(f"speakers have chances {self.others}, which leave no turn to the current policy")
        if not self.stale and self.stale_every != 25:
            raise ValueError("cross_policy.stale_every counts only with cross_policy.stale; leave it out")
        for key, off in (("draw", "turn"), ("schedule", [])):
            if not self.others and getattr(self, key) != off:
                raise ValueError(
                    f"cross_policy.{key} counts only with cross_policy.stale, cross_policy.reference or cross_policy.outside; leave it out"
                )
        if taken := set(self.outside) & set(OWN_NAMES):
            raise ValueError(f"cross_policy.outside.{min(taken)} has the name of a policy of the run; give it another")
        return self

    @model_validator(mode="after")
    def _points_are_in_order(self) -> CrossPolicyConfig:
        steps = [step for step, _ in self.schedule]
        if steps != sorted(set(steps)) or any(step < 0 or not 0 <= part <= 1 for step, part in self.schedule):
            raise ValueError(
                f"cross_policy.schedule is {[list(point) for point in self.schedule]}; expected points [step, part] with growing steps "
                "from 0 on and parts from 0 to 1"
            )
        return self


class TeacherConfig(Section):
    model: str = ""
    """The model whose words are learnt with algorithm.advantage 'teacher': a folder, a pulled or a hub name, with the same tokenizer."""


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


class MonitorConfig(Section):
    window: int = Field(default=10, ge=2)
    """Batches whose median is compared with that of the first three; before there are as many it is silent."""
    fall: float = Field(default=0.25, ge=0, lt=1)
    """A sign where success, or, unless success has grown, reward deviation in groups or entropy, is below this share of what it was."""
    rise: float = Field(default=3.0, gt=1)
    """A sign where repeated words, tokens of a turn, or invalid actions are above so many times what they were, or the gradient norm above
    four times as many."""
    stop: int = Field(default=0, ge=0)
    """Signs at once in one environment that end the run, with a checkpoint; 0: it is only told."""


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
