"""Trainers of a run file: the policy's, with reference and critic, and the one that clones."""

from __future__ import annotations

from transformers import PreTrainedModel

from ludus.algorithms import make_algorithm
from ludus.config import RunConfig
from ludus.errors import ConfigError
from ludus.launch.context import ModelContext
from ludus.models.loading.load import load_model, load_tokenizer
from ludus.trainer.budget import OnEvent
from ludus.trainer.critics.archer import Archer
from ludus.trainer.critics.critic import Critic
from ludus.trainer.critics.value import ValueCritic
from ludus.trainer.local import LocalTrainer
from ludus.trainer.lora import add_adapters
from ludus.trainer.optimizer import Schedule, warmup, warmup_cosine
from ludus.trainer.sft import cloning_trainer


def make_policy_trainer(context: ModelContext, *, on_event: OnEvent) -> LocalTrainer:
    config = context.config
    model = context.load_model()
    add_adapters(model, config.lora, seed=config.seed)
    return LocalTrainer(
        model,
        algorithm_loss=make_algorithm(config.algorithm).loss,
        config=config.trainer,
        temperature=config.rollout.temperature,
        schedule=_schedule(config),
        reference=_reference(context),
        entropy_gradient=config.algorithm.entropy_weight > 0,
        critic=_critic(context, policy=model, on_event=on_event),
        on_event=on_event,
        tokenizer=context.tokenizer,
    )


def make_cloning_trainer(context: ModelContext) -> LocalTrainer:
    config = context.config
    return cloning_trainer(
        context.load_model(),
        config=config.sft,
        trainer=config.trainer,
        lora=config.lora,
        seed=config.seed,
        tokenizer=context.tokenizer,
    )


def _reference(context: ModelContext) -> PreTrainedModel | None:
    """The frozen model that the loss compares with: the teacher, or the run's first model."""
    name = context.config.teacher.model
    if not name:
        return context.load_model() if context.config.algorithm.kl != "none" else None
    if load_tokenizer(name).get_vocab() != context.tokenizer.get_vocab():
        raise ConfigError(
            f"teacher.model {name!r} has another vocabulary than model.name {context.config.model.name!r}. A teacher "
            "scores the very ids that were sampled; use a teacher of the same family."
        )
    return load_model(name, device=context.devices.trainer, dtype=context.dtype)


def _critic(context: ModelContext, *, policy: PreTrainedModel, on_event: OnEvent) -> Critic | None:
    config, trainer = context.config.critic, context.config.trainer
    if config.kind == "none":
        return None
    if config.kind == "archer":
        discount, seed = context.config.algorithm.get("discount"), context.config.seed
        return Archer(
            config, encoder=context.load_model(), trainer=trainer, discount=discount, seed=seed, on_event=on_event
        )
    own = context.load_model() if config.kind == "model" else None
    return ValueCritic(config, policy=policy, model=own, trainer=trainer, on_event=on_event)


def _schedule(config: RunConfig) -> Schedule:
    """The learning rate by policy step: the critic's own warm-up steps come before the first."""
    trainer, alone = config.trainer, config.critic.warmup
    schedule = warmup(trainer.lr, steps=trainer.warmup_steps)
    if trainer.decay == "cosine":
        steps = max(1, config.pipeline.steps - alone)
        schedule = warmup_cosine(trainer.lr, warmup_steps=trainer.warmup_steps, steps=steps)
    return lambda step: schedule(step - alone)
