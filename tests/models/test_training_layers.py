"""Training layers against Transformers' own: logprobs and gradients, with shared prefixes."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from transformers import (
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from ludus.models.attention.packed import use_packed_attention
from ludus.models.layers.inference import restore_layers
from ludus.models.layers.training import has_training_layers
from ludus.trainer.forward import prepare, sampled_logprobs
from ludus.trainer.pack import make_microbatch
from ludus.types import Sequence

SIZES = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)),
}


def sequence(ids, *, sampled):
    ids, zeros = np.array(ids, dtype=np.int32), np.zeros(len(ids), dtype=np.float32)
    counts = zeros.astype(np.int32)
    return Sequence(
        ids=ids,
        sampled=np.array(sampled),
        logprobs=zeros,
        versions=counts,
        turns=counts,
        advantages=zeros,
        weights=zeros,
    )


def batch():
    """A group that shares its prompt and some of its answers, one that is the same twice, and one of its own."""
    prompt = [5, 9, 2, 7, 7, 30]
    tails = [[11, 12, 3, 40, 8, 9], [11, 12, 3, 41, 8], [11, 13], [11, 13]]
    rows = [prompt + tail for tail in tails] + [[8, 1, 44, 45, 46, 2, 2]]
    return [sequence(row, sampled=[i >= 4 and i % 3 != 1 for i in range(len(row))]) for row in rows]


def logprobs_and_gradients(model):
    logprobs, _ = sampled_logprobs(model, make_microbatch(batch(), device=model.device), temperature=1.0)
    (logprobs * torch.arange(1.0, len(logprobs) + 1, device=model.device)).sum().backward()
    return logprobs.detach(), {name: weight.grad for name, weight in model.named_parameters()}


@pytest.mark.parametrize("family", FAMILIES)
def test_training_layers_give_the_models_own_logprobs_and_gradients(family):
    torch.manual_seed(0)
    fast = FAMILIES[family]().eval()
    own = copy.deepcopy(fast)
    for weight in (p for n, p in fast.named_parameters() if "norm" in n):
        weight.data.uniform_(0.5, 1.5)  # ones would hide a weight that is left out
    own.load_state_dict(fast.state_dict())
    use_packed_attention(own)
    prepare(fast)
    assert has_training_layers(fast)
    assert not has_training_layers(own)
    (got, gradients), (expected, expected_gradients) = logprobs_and_gradients(fast), logprobs_and_gradients(own)
    assert torch.allclose(got, expected, atol=1e-5)
    for name, expected_gradient in expected_gradients.items():
        scale = float(expected_gradient.abs().max())
        assert torch.allclose(gradients[name], expected_gradient, atol=1e-5 * max(1.0, scale), rtol=1e-4), name


def test_a_model_that_does_more_in_its_layers_is_trained_as_it_is():
    torch.manual_seed(0)
    model = GraniteForCausalLM(GraniteConfig(**SIZES, residual_multiplier=0.3)).eval()
    prepare(model)
    assert not has_training_layers(model)


def test_checkpointed_layers_stay_training_layers_and_give_the_same_gradients():
    torch.manual_seed(0)
    model = FAMILIES["llama"]().eval()
    prepare(model)
    _, expected = logprobs_and_gradients(model)
    again = copy.deepcopy(model)
    again.zero_grad()
    again.gradient_checkpointing_enable({"use_reentrant": False})
    again.train()
    _, got = logprobs_and_gradients(again)
    assert all(torch.allclose(got[name], expected[name], atol=1e-6) for name in expected)


def test_a_model_can_be_made_its_own_again():
    torch.manual_seed(0)
    model = FAMILIES["llama"]().eval()
    prepare(model)
    restore_layers(model)
    assert not has_training_layers(model)
    assert type(model.base_model.layers[0].input_layernorm).__name__ == "LlamaRMSNorm"
