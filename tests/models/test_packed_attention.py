import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen3Config, Qwen3ForCausalLM

from ludus.errors import ConfigError
from ludus.models.attention.packed import Segments, use_packed_attention

SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.2,
}
FAMILIES = {"llama": (LlamaForCausalLM, LlamaConfig), "qwen3": (Qwen3ForCausalLM, Qwen3Config)}


def make_model(family="llama"):
    torch.manual_seed(0)
    model_class, config_class = FAMILIES[family]
    return model_class(config_class(**SMALL)).eval()


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def packed_logits(model, ids, lengths):
    positions = torch.cat([torch.arange(n) for n in lengths])
    return model(
        input_ids=ids.unsqueeze(0), position_ids=positions.unsqueeze(0), segments=Segments.of(lengths), use_cache=False
    ).logits[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_row_gives_the_logits_and_gradients_of_each_sequence_alone(family):
    lengths = [7, 1, 12, 30]
    ids = torch.randint(0, 50, (sum(lengths),), generator=torch.Generator().manual_seed(1))
    noise = torch.randn(len(ids), 50, generator=torch.Generator().manual_seed(2))
    model = make_model(family)
    alone = torch.cat([model(input_ids=part.unsqueeze(0), use_cache=False).logits[0] for part in ids.split(lengths)])
    expected = gradients(model, (alone * noise).mean())
    use_packed_attention(model)
    packed = packed_logits(model, ids, lengths)
    assert torch.allclose(packed, alone, atol=1e-5)
    for got, wanted in zip(gradients(model, (packed * noise).mean()), expected, strict=True):
        assert torch.allclose(got, wanted, atol=1e-5)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.data())
def test_changing_one_sequence_changes_no_bit_of_another(lengths, data):
    model = make_model()
    use_packed_attention(model)
    changed = data.draw(st.integers(0, len(lengths) - 1))
    ids = torch.arange(sum(lengths)) % 50
    other = torch.cat([(part + 1) % 50 if i == changed else part for i, part in enumerate(ids.split(lengths))])
    with torch.no_grad():
        before, after = (packed_logits(model, some, lengths).split(lengths) for some in (ids, other))
    assert [torch.equal(a, b) for a, b in zip(before, after, strict=True)] == [
        i != changed for i in range(len(lengths))
    ]


def test_without_segments_each_row_is_one_sequence():
    model = make_model()
    ids = torch.randint(0, 50, (3, 10), generator=torch.Generator().manual_seed(1))
    expected = model(input_ids=ids, use_cache=False).logits
    use_packed_attention(model)
    assert torch.allclose(model(input_ids=ids, use_cache=False).logits, expected, atol=1e-5)


def test_a_sequence_longer_than_the_sliding_window_is_refused_and_a_shorter_one_is_not():
    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(**SMALL, sliding_window=8)).eval()
    use_packed_attention(model)
    assert packed_logits(model, torch.arange(12), [8, 4]).shape == (12, 50)
    with pytest.raises(ConfigError, match="9 tokens is longer than this model's sliding window of 8"):
        packed_logits(model, torch.arange(12), [9, 3])
