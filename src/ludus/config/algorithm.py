"""[algorithm] and [critic]: how a run learns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any, Literal

from pydantic import BaseModel, Field, ModelWrapValidatorHandler, ValidationError, create_model, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from ludus.config.pieces import ADVANTAGES, KINDS, Advantage, Piece
from ludus.config.section import Section
from ludus.errors import nearest


class AlgorithmConfig(Section):
    """Each choice names a piece, which has its own keys: an instance's class is assembled from the
    chosen pieces. `config.gae_lambda` exists with advantage "gae", but not with "group"."""

    advantage: str = "group"
    """What a sampled token is worth. group: the reward against its group (GRPO). leave_one_out:
    against the others of the group (RLOO). reward: the reward itself (REINFORCE). return_to_go: the
    discounted rewards from the token's turn on, against the others. gigpo: group, plus a comparison
    of turns with equal states. gae (PPO), turn_gae (Agent-R1) and bilevel_gae: by a critic, over
    tokens, turns or both. archer: Q - V of an off-policy critic. teacher: the teacher's logprob
    minus the policy's, without rewards (on-policy distillation)."""
    rewards: tuple[str, ...] = ("unfinished", "overlong")
    """Reward shapers, in order. The built-in ones do nothing until their key is set."""
    filter: str = "zero_variance"
    """Which groups are trained. none: all. zero_variance: those whose rewards differ. dynamic: the
    same, and the loop plays others in place of the dropped ones (DAPO). top_share: the filter_share
    of groups with the greatest reward deviation (StarPO-S). top_p: the greatest that hold
    filter_share of all deviation (RAGEN-2). The default is none for advantages that learn from
    groups of equal rewards: all but group and leave_one_out."""
    task_normalise: str = "none"
    """Whiten advantages per environment (AgentRL). token, trajectory: each token or each trajectory
    counts once in the statistics. none: off."""
    aggregate: str = "token"
    """Weight of a token in the loss. token: every sampled token of the batch weighs the same.
    trajectory: every trajectory does. sequence: every trajectory does, and every sequence within
    it. constant: the sum over tokens / (trajectories x aggregate_tokens) (Dr. GRPO)."""
    loss: str = "clip"
    """clip: clipped surrogate (PPO). cispo: clipped ratio as a weight of the log-likelihood
    (CISPO). reinforce: the plain policy gradient."""
    ratio_base: str = "old"
    """Denominator of the ratio. old: the policy at the start of the optimiser step (decoupled, with
    importance weights). behaviour: the logprobs that the engine reported."""
    kl: str = "none"
    """Estimator of the KL divergence to the run's start model. k1: subtracted from the advantage.
    k2, k3: added to the loss. none: off."""
    off_policy: Literal["train", "mask"] = "train"
    """Tokens that another policy of [cross_policy] sampled. train: with that policy's logprobs as
    the behaviour policy. mask: not trained."""
    entropy_weight: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus. 0 disables it."""

    def __new__(cls, **data: Any) -> AlgorithmConfig:
        return super().__new__(_resolved(data)[0] if cls is AlgorithmConfig else cls)

    def __reduce__(self) -> tuple[Any, ...]:
        # pickle finds a class by its name, and an assembled class has none
        return AlgorithmConfig.model_validate, (self.model_dump(),)

    @classmethod
    def fields(cls) -> dict[str, FieldInfo]:
        options = {key: field for _, piece in every_piece() for key, field in piece.options.model_fields.items()}
        return options | cls.model_fields

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key that the chosen pieces may not have."""
        return getattr(self, key, default)

    def function(self, kind: str, name: str = "") -> Callable[..., Any]:
        """The chosen piece of a kind, with its options."""
        piece = KINDS[kind].find(name or getattr(self, kind))
        return partial(piece.function, options=piece.read(self.__dict__))

    @property
    def advantage_piece(self) -> Advantage:
        return ADVANTAGES.find(self.advantage)

    @model_validator(mode="wrap")
    @classmethod
    def _assemble(cls, data: Any, handler: ModelWrapValidatorHandler[AlgorithmConfig]) -> AlgorithmConfig:
        if isinstance(data, AlgorithmConfig):
            return data
        if not isinstance(data, Mapping):
            return handler(data)
        assembled, data = _resolved(data)
        return handler(data) if cls is assembled else assembled.model_validate(data)

    def problems(self) -> Iterator[str]:
        for _, piece in _chosen(self.__dict__):
            piece.read(self.__dict__)  # runs its own validators
        if self.get("normalise") == "batch" and self.task_normalise != "none":
            yield "algorithm.normalise is 'batch' with task_normalise, which would undo it; use one of them"
        for key in ("task_normalise", "kl"):
            if self.advantage_piece.in_loss and getattr(self, key) != "none":
                yield (
                    f"algorithm.{key} is {getattr(self, key)!r} with advantage {self.advantage!r}, which is known in "
                    "the loss only and is a distance to the teacher already; leave it out"
                )


def every_piece() -> Iterator[tuple[str, Piece]]:
    """(kind, piece) of all that are built in."""
    return ((kind, piece) for kind, registry in KINDS.items() for piece in registry.built_in().values())


def _chosen(data: Mapping[str, Any]) -> Iterator[tuple[str, Piece]]:
    """(kind, piece) of the section's choices. Validation reports a choice of the wrong type."""
    for kind, registry in KINDS.items():
        default = AlgorithmConfig.model_fields[kind].default
        given = data.get(kind, default)
        for name in given if isinstance(given, list | tuple) else [given]:
            yield kind, registry.find(name if isinstance(name, str) else default)


def _resolved(data: Mapping[str, Any]) -> tuple[type[AlgorithmConfig], dict[str, Any]]:
    """The class for the section's choices, and its data with the advantage's default filter. Keys
    of other choices are dropped if they have their default, as in a stored run with an override."""
    name = data.get("advantage", "group")
    data = {"filter": ADVANTAGES.find(name).filter, **data} if isinstance(name, str) else dict(data)
    chosen = list(_chosen(data))
    cls = _assembled(*(piece.options for _, piece in chosen))
    errors = [
        InitErrorDetails(type=PydanticCustomError("option", "{text}", {"text": text}), loc=(key,), input=data.get(key))
        for key, text in _wrong_keys(data, chosen, cls)
    ]
    if errors:
        raise ValidationError.from_exception_data("algorithm", errors)
    return cls, {key: value for key, value in data.items() if key in cls.model_fields}


def _wrong_keys(
    data: Mapping[str, Any], chosen: list[tuple[str, Piece]], cls: type[AlgorithmConfig]
) -> Iterator[tuple[str, str]]:
    """(key, what is wrong) for keys that are missing, unknown or of another choice."""
    for kind, piece in chosen:
        for key, field in piece.options.model_fields.items():
            if field.is_required() and key not in data:
                yield key, f"algorithm.{key} is required with {kind} {piece.name!r}. {field.description}"
    for key in sorted(data.keys() - cls.model_fields.keys()):
        owners = [(kind, piece) for kind, piece in every_piece() if key in piece.options.model_fields]
        if not owners:
            known = AlgorithmConfig.fields() | cls.model_fields
            yield key, f"unknown key 'algorithm.{key}'.{nearest(key, known)} Known here: {', '.join(sorted(known))}."
        elif not all(_same(data[key], piece.options.model_fields[key].default) for _, piece in owners):
            kind, names = owners[0][0], ", ".join(piece.name for _, piece in owners)
            given = f"{kind} {data.get(kind, AlgorithmConfig.model_fields[kind].default)!r}"
            text = f"algorithm.{key} is {data[key]!r}, but {given} has no such option; {kind} choices that have it: "
            yield key, text + names


@cache
def _assembled(*options: type[BaseModel]) -> type[AlgorithmConfig]:
    fields: dict[str, Any] = {}
    for own in options:
        for key, field in own.model_fields.items():
            if key not in AlgorithmConfig.model_fields:
                fields.setdefault(key, (field.annotation, field))
    return create_model("AlgorithmConfig", __base__=AlgorithmConfig, __module__=__name__, **fields)


def _same(value: Any, default: Any) -> bool:
    return value == default and isinstance(value, bool) == isinstance(default, bool)


class CriticConfig(Section):
    kind: Literal["none", "head", "model", "archer"] = "none"
    """head: a linear layer on the policy's hidden states, whose gradient does not reach the policy.
    model: a model of its own, which starts as a copy of the policy. archer: two Q and two V
    networks over whole turns, with target networks and a replay buffer."""
    lr: float = Field(default=1e-4, gt=0)
    """Learning rate of the critic's own optimiser, without warm-up."""
    steps: int = Field(default=1, gt=0)
    """Optimiser steps of the critic per batch."""
    warmup: int = Field(default=0, ge=0)
    """Batches at the start that train the critic alone (20 in ArCHer)."""
    clip: float = Field(default=0.0, ge=0)
    """head, model: how far a value may move on one batch before its loss is clipped. 0: off."""
    replay: int = Field(default=10_000, gt=0)
    """archer: turns in the replay buffer, newest first. They are stored in checkpoints."""
    batch: int = Field(default=256, gt=0)
    """archer: turns per optimiser step of the critic."""
    target_rate: float = Field(default=0.1, gt=0, le=1)
    """archer: share of a network that is mixed into its target network after each step."""
    baseline: bool = False
    """archer: subtract a learnt baseline per token, predicted from the tokens before it."""

    def problems(self) -> Iterator[str]:
        for key in self.changed(*type(self).model_fields if self.kind == "none" else ()):
            yield f"critic.{key} counts only with a critic; set critic.kind, or leave it out"
        for key in self.changed(*("replay", "batch", "target_rate", "baseline") if self.kind != "archer" else ()):
            yield f"critic.{key} counts only with critic.kind 'archer'; leave it out"
        if self.clip and self.kind == "archer":
            yield "critic.clip counts only with critic.kind 'head' or 'model'; leave it out"
        if self.clip and self.steps == 1:
            yield "critic.clip counts only with critic.steps above 1: in the first of them no value has moved yet"
