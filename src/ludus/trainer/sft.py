"""Behaviour cloning: a trainer's step with advantage 1 and the negative log-likelihood as loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ludus.algorithms.algorithm import Tokens
from ludus.config import LoraConfig, SftConfig, TrainerConfig
from ludus.errors import ConfigError
from ludus.trainer.local import LocalTrainer
from ludus.trainer.lora import add_adapters
from ludus.trainer.optimizer import warmup_cosine
from ludus.trainer.trainer import Trainer
from ludus.types import Batch, Sequence, frozen_array


def cloning_trainer(
    model: PreTrainedModel,
    *,
    config: SftConfig,
    trainer: TrainerConfig,
    lora: LoraConfig = LoraConfig(),
    seed: int,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> LocalTrainer:
    """Return a trainer of `model`, or of adapters on it, whose loss is the negative log-likelihood.

    `trainer` gives all but the learning rate, which warms up and falls to 0 over `config.steps`."""
    schedule = warmup_cosine(config.lr, warmup_steps=config.warmup_steps, steps=config.steps)
    add_adapters(model, lora, seed=seed)
    return LocalTrainer(model, algorithm_loss=log_likelihood, config=trainer, schedule=schedule, tokenizer=tokenizer)


async def clone(
    trainer: Trainer,
    sequences: Seq[Sequence],
    *,
    config: SftConfig,
    seed: int,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
) -> dict[str, float]:
    """Take `config.steps` steps on the sampled tokens; return the last step's metrics."""
    trainable = [sequence for sequence in sequences if sequence.num_sampled]
    if not trainable:
        raise ConfigError(f"nothing to clone: none of the {len(sequences)} sequences has a sampled token")
    metrics: dict[str, float] = {}
    batches = cloning_batches(trainable, batch_tokens=config.batch_tokens, seed=seed)
    for step, batch in zip(range(config.steps), batches, strict=False):
        metrics = await trainer.step(batch)
        if on_step is not None:
            on_step(step, metrics)
    return metrics


def log_likelihood(tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
    return -tokens.logprobs * tokens.advantages, {}


def cloning_batches(sequences: Seq[Sequence], *, batch_tokens: int, seed: int) -> Iterator[Batch]:
    """Yield batches for ever; the seed alone decides the order within each epoch.

    A batch ends before the sequence that would exceed `batch_tokens`."""
    rng = np.random.default_rng(seed)
    held: list[Sequence] = []
    while True:
        for index in rng.permutation(len(sequences)):
            if held and sum(map(len, held)) + len(sequences[index]) > batch_tokens:
                yield _weigh(held)
                held = []
            held.append(sequences[index])


def _weigh(sequences: Seq[Sequence]) -> Batch:
    weight = 1.0 / sum(sequence.num_sampled for sequence in sequences)
    return Batch(
        tuple(
            replace(
                sequence,
                advantages=frozen_array(sequence.sampled, np.float32),
                weights=frozen_array(sequence.sampled * weight, np.float32),
            )
            for sequence in sequences
        )
    )
