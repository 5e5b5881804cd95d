"""Inference layers on a CPU against Transformers' own; tests/engines/test_cuda.py has the kernels of a GPU."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import GraniteConfig, GraniteForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from ludus.models.attention.cached import NAME
from ludus.models.layers.inference import use_inference_layers
from ludus.models.serving import _replay, serve

SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)),
}
IDS = torch.arange(1, 12)


def make(family):
    torch.manual_seed(0)
    return FAMILIES[family]().eval().requires_grad_(False)


@torch.inference_mode()
def plain_logits(model):
    return model(IDS[None], use_cache=False).logits[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_inference_layers_give_the_models_own_logits(family):
    model = make(family)
    expected = plain_logits(model)
    assert serve(model, max_tokens=64), "it has inference layers"
    with torch.inference_mode():
        assert torch.allclose(_replay(model, IDS), expected, atol=1e-4)


def test_weights_copied_in_place_reach_the_joined_projections():
    model, other = make("llama"), make("llama")
    for weight in other.parameters():
        weight.mul_(1.1)
    expected = plain_logits(other)
    serve(model, max_tokens=64)
    with torch.inference_mode():
        for weight, new in zip(model.parameters(), other.parameters(), strict=True):
            weight.copy_(new)
        assert torch.allclose(_replay(model, IDS), expected, atol=1e-3)


def test_a_copys_projections_are_merged_again_and_it_has_weights_of_its_own():
    model = make("llama")
    serve(model, max_tokens=64)
    with torch.inference_mode():
        before = _replay(model, IDS)
        spare = copy.deepcopy(model)
        assert use_inference_layers(spare)
        for weight in spare.parameters():
            weight.mul_(1.5)
        assert torch.equal(_replay(model, IDS), before)
        assert not torch.allclose(_replay(spare, IDS), before, atol=1e-2)


def test_a_model_that_does_more_in_its_layers_is_served_as_it_is():
    torch.manual_seed(0)
    model = GraniteForCausalLM(GraniteConfig(**SIZES, residual_multiplier=0.3)).eval().requires_grad_(False)
    expected = plain_logits(model)
    assert not serve(model, max_tokens=64), "fusing would lose its residual multiplier"
    assert model.config._attn_implementation == NAME
    with torch.inference_mode():
        assert torch.allclose(_replay(model, IDS), expected, atol=1e-4)
