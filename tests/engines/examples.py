"""What the engine tests share: a small model, an engine around it, and the truth to compare with."""

from __future__ import annotations

import copy
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from ludus.config import EngineConfig
from ludus.engines.embedded import EmbeddedEngine
from ludus.types import Completion, Sampling

VOCAB = 97


def small_llama(*, seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """Grouped key-value heads, tied embeddings, and weights large enough for peaked distributions."""
    torch.set_num_threads(1)
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "initializer_range": 0.3,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**{**sizes, **changes})).eval()


@asynccontextmanager
async def embedded(model: PreTrainedModel, *, max_tokens: int = 256, **config: Any) -> AsyncIterator[EmbeddedEngine]:
    engine = EmbeddedEngine(copy.deepcopy(model), config=EngineConfig(**config), max_tokens=max_tokens)
    try:
        yield engine
    finally:
        await engine.close()


@torch.inference_mode()
def full_logprobs(model: PreTrainedModel, ids: Sequence[int], *, temperature: float = 1.0) -> torch.Tensor:
    """Logprobs (T - 1, vocabulary) of what follows each token, by one plain forward pass."""
    return (model(torch.tensor([list(ids)])).logits[0, :-1].float() / temperature).log_softmax(-1)


def gap(model: PreTrainedModel, prompt: Sequence[int], completion: Completion, *, temperature: float = 1.0) -> float:
    """Largest distance between the completion's logprobs and those of a plain forward pass over everything."""
    ids = [*prompt, *completion.ids]
    expected = full_logprobs(model, ids, temperature=temperature)[len(prompt) - 1 :]
    chosen = expected.gather(-1, torch.tensor(completion.ids)[:, None])[:, 0]
    return float((chosen - torch.tensor(completion.logprobs)).abs().max())


def words(rng: random.Random, low: int, high: int) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(rng.randint(low, high))]


def tokens(count: int, *, seed: int = 0, temperature: float = 1.0, stop_ids: tuple[int, ...] = ()) -> Sampling:
    return Sampling(max_tokens=count, temperature=temperature, seed=seed, stop_ids=stop_ids)
