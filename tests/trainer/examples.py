"""A model small enough to train in milliseconds, and batches for it."""

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ludus.algorithms import make_algorithm
from ludus.config import AlgorithmConfig, TrainerConfig
from ludus.trainer.local import LocalTrainer
from ludus.types import Batch, Sequence, frozen_array
from ludus.weights.memory import MemoryChannel

VOCABULARY = 60


def make_model(seed=0, **changes):
    torch.manual_seed(seed)
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,  # sharp enough that a wrong mask or position shows
    }
    return LlamaForCausalLM(LlamaConfig(**settings | changes))


def make_sequence(length, *, seed=0, weight=0.01, ids=None):
    """Prompts of three tokens, then turns of two sampled and two observed tokens."""
    generator = np.random.default_rng(seed)
    sampled = np.arange(length) % 4 < 2
    sampled[:3] = False
    return Sequence(
        ids=frozen_array(generator.integers(0, VOCABULARY, length) if ids is None else ids, np.int32),
        sampled=frozen_array(sampled, np.bool_),
        logprobs=frozen_array(np.where(sampled, -3 + generator.normal(size=length), 0), np.float32),
        versions=frozen_array(np.where(sampled, 0, -1), np.int32),
        turns=frozen_array(np.arange(length) // 4, np.int32),
        advantages=frozen_array(np.where(sampled, generator.normal(), 0), np.float32),
        weights=frozen_array(np.where(sampled, weight, 0), np.float32),
    )


def make_batch(seed=0, lengths=(9, 30, 17, 6, 22)):
    return Batch(tuple(make_sequence(length, seed=100 * seed + i) for i, length in enumerate(lengths)))


def make_trainer(model=None, *, loss=None, temperature=1.0, channel=None, **knobs):
    return LocalTrainer(
        make_model() if model is None else model,
        algorithm_loss=loss or make_algorithm(AlgorithmConfig()).loss,
        config=TrainerConfig(**{"lr": 1e-2} | knobs),
        temperature=temperature,
        channel=channel or MemoryChannel(),
    )


def weights_of(trainer):
    return {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())
