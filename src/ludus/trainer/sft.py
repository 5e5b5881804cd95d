"""Behaviour cloning from sequences. An SFT step is a trainer's step with advantage 1 and the log-likelihood as loss, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from ludus.algorithms.algorithm import Tokens
from ludus.config import LoraConfig, SftConfig, TrainerConfig
from ludus.errors import ConfigError
from ludus.trainer.lora import add_adapters
from ludus.trainer.optimizer import warmup_cosine
from ludus.trainer.trainer import Trainer
from ludus.types import Batch, Sequence, frozen_array


def clone(
    model: PreTrainedModel,
    sequences: Seq[Sequence],
    *,
    config: SftConfig,
    trainer: TrainerConfig,
    lora: LoraConfig = LoraConfig(),
    seed: int,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
) -> dict[str, float]:
    """Trains `model` in place, or adapters that it is given, to say the sampled tokens of `sequences`; returns the last step's metrics.
    `trainer` gives everything but the learning rate, which warms up and then falls to 0 over `config.steps`."""
    trainable = [sequence for sequence in sequences if sequence.num_sampled]
    if not trainable:
        raise ConfigError(f"nothing to clone: none of the {len(sequences)} sequences has a sampled token")
    schedule = warmup_cosine(config.lr, warmup_steps=config.warmup_steps, steps=config.steps)
    add_adapters(model, lora, seed=seed)
    cloner = Trainer(model, algorithm_loss=log_likelihood, config=trainer, schedule=schedule)
    metrics: dict[str, float] = {}
    batches = cloning_batches(trainable, batch_tokens=config.batch_tokens, seed=seed)
    for step, batch in zip(range(config.steps), batches, strict=False):
        metrics = cloner.step(batch)
        if on_step is not None:
            on_step(step, metrics)
    return metrics


def log_likelihood(tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
    return -tokens.logprobs * tokens.advantages, {}


def cloning_batches(sequences: Seq[Sequence], *, batch_tokens: int, seed: int) -> Iterator[Batch]:
    """Epochs without end, each in an order of its own that only the seed decides. A batch closes when the next would overfill it."""
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
