from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from ludus.errors import ConfigError
from ludus.models.attention.cached import KeyValueCache, Layout, Piece, Shape, cover, share_calls
from ludus.models.serving import forward, serve

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


@pytest.fixture(scope="module")
def pair() -> tuple[LlamaForCausalLM, LlamaForCausalLM]:
    """One set of weights twice: with plain and with cached attention."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    plain = LlamaForCausalLM(LlamaConfig(**SIZES, initializer_range=0.3)).eval()
    cached = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    cached.load_state_dict(plain.state_dict())
    serve(cached, max_tokens=64)
    return plain, cached


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), num=st.integers(1, 6))
def test_sequences_packed_in_any_pieces_over_any_rows_equal_plain_forwards(pair, seed: int, num: int):
    plain, cached = pair
    rng = random.Random(seed)
    rows = sorted(rng.sample(range(12), num))
    sequences = {row: [rng.randrange(64) for _ in range(rng.randint(1, 40))] for row in rows}
    cache = KeyValueCache(Shape.of(cached), rows=12, length=40, dtype=torch.float32, device=torch.device("cpu"))
    cache.call_tokens = rng.choice([0, 3, cache.call_tokens])  # few, some or all pieces share an attention call
    done, logits = dict.fromkeys(rows, 0), {row: [] for row in rows}
    with torch.inference_mode():
        while open_rows := [row for row in rows if done[row] < len(sequences[row])]:
            pieces = [
                Piece(row, done[row], min(rng.choice([1, 1, 2, 9]), len(sequences[row]) - done[row]))
                for row in open_rows
            ]
            pieces.sort(key=lambda piece: piece.count > 1)
            ids = torch.tensor([token for p in pieces for token in sequences[p.row][p.start : p.end]])
            layout = Layout(pieces, cache=cache, dtype=torch.float32, device=torch.device("cpu"))
            found = forward(cached, ids, layout=layout, keep=torch.arange(len(ids))).split([p.count for p in pieces])
            for piece, each in zip(pieces, found, strict=True):
                logits[piece.row].append(each)
                done[piece.row] = piece.end
        for row, sequence in sequences.items():
            expected = plain(torch.tensor([sequence])).logits[0]
            assert (torch.cat(logits[row]) - expected).abs().max() < 1e-4


@settings(deadline=None)
@given(
    st.dictionaries(st.integers(0, 60), st.integers(1, 500), min_size=1, max_size=30),
    st.integers(0, 1000),
)
def test_ranges_cover_every_row_once_and_reach_its_length(lengths: dict[int, int], call_tokens: int):
    ranges = cover(sorted(lengths.items()), call_tokens=call_tokens)
    for row, length in lengths.items():
        mine = [r for r in ranges if r.first <= row < r.first + r.num]
        assert len(mine) == 1
        assert mine[0].length >= length
    read = sum(r.num * r.length for r in ranges)
    assert read <= sum(lengths.values()) + call_tokens * (len(lengths) - 1), (
        "padding costs less than the calls it saves"
    )


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 300), st.integers(2, 60)), min_size=1, max_size=20), st.integers(0, 20_000))
def test_every_piece_is_in_one_call_and_padding_costs_less_than_the_calls_it_saves(sizes, call_pairs: int):
    pieces = [(Piece(row, start, count), row * 100) for row, (start, count) in enumerate(sizes)]
    calls = share_calls(pieces, call_pairs=call_pairs)
    assert sorted((piece.row, first) for call in calls for piece, first in call) == [(p.row, f) for p, f in pieces]
    padded = sum(len(call) * max(p.count for p, _ in call) * max(p.end for p, _ in call) for call in calls)
    needed = sum(piece.count * piece.end for piece, _ in pieces)
    assert padded <= needed + call_pairs * (len(pieces) - len(calls))


def test_a_copied_prefix_continues_like_the_original(pair):
    _, cached = pair
    device = torch.device("cpu")
    cache = KeyValueCache(Shape.of(cached), rows=2, length=16, dtype=torch.float32, device=device)
    ids = torch.arange(10)

    def run(piece: Piece) -> torch.Tensor:
        layout = Layout([piece], cache=cache, dtype=torch.float32, device=device)
        keep = torch.tensor([piece.count - 1])
        return forward(cached, ids[piece.start : piece.end], layout=layout, keep=keep)

    with torch.inference_mode():
        run(Piece(0, 0, 8))
        cache.copy(0, target=1, count=8)
        assert torch.equal(run(Piece(0, 8, 2)), run(Piece(1, 8, 2)))


@pytest.mark.parametrize(
    "model",
    [
        Qwen2ForCausalLM(Qwen2Config(**SIZES)),
        Qwen3ForCausalLM(Qwen3Config(**SIZES)),
        Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **MOE)),
        Phi3ForCausalLM(Phi3Config(**SIZES)),
        MistralForCausalLM(MistralConfig(**SIZES, sliding_window=256)),
        GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4)),
        GPTNeoXForCausalLM(
            GPTNeoXConfig(
                vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
            )
        ),
    ],
    ids=lambda model: type(model).__name__,
)
def test_the_common_families_are_served(model):
    serve(model, max_tokens=128)
    assert model.config._attn_implementation == "ludus_cached"


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (MistralForCausalLM(MistralConfig(**SIZES, sliding_window=64)), "sliding window is 64 tokens"),
        (Gemma2ForCausalLM(Gemma2Config(**SIZES)), "attn_logit_softcapping"),
        (BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4)), "attention interface"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_a_model_whose_attention_does_more_is_refused_with_the_reason(model, reason: str):
    with pytest.raises(ConfigError, match=reason):
        serve(model, max_tokens=128)


def test_attention_that_hides_something_from_its_config_is_found_out_by_the_probe():
    model = LlamaForCausalLM(LlamaConfig(**SIZES, initializer_range=0.3))
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.forward = _scaled_by_hand(attention)
    with pytest.raises(ConfigError, match="probe differ"):
        serve(model, max_tokens=32)


def _scaled_by_hand(attention):
    """Attention that behaves differently in eager mode, as one with a hidden extra term would."""
    original = attention.forward

    def changed(hidden_states, **kwargs):
        output, weights = original(hidden_states, **kwargs)
        return (output * 1.5 if attention.config._attn_implementation == "eager" else output), weights

    return changed
