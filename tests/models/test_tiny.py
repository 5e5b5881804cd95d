from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from ludus.errors import ConfigError
from ludus.models.loading.tiny import SPECIAL_TOKENS, make_tiny, make_tiny_tokenizer

CORPUS = [
    'Guess a number between 3 and 97. {"name": "guess", "arguments": {"number": 57}} too low',
    "look north, go east",
]
TOKENIZER = make_tiny_tokenizer(CORPUS)


def digest(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_promise_9_the_same_corpus_and_seed_give_the_same_files_in_any_process(tmp_path: Path) -> None:
    code = f"from ludus.models.loading.tiny import make_tiny; make_tiny('{tmp_path}/other', corpus={CORPUS!r}, seed=7, layers=2)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONHASHSEED": "99", "OMP_NUM_THREADS": "1"})
    here = make_tiny(tmp_path / "here", corpus=iter(CORPUS), seed=7, layers=2)
    assert digest(here) == digest(tmp_path / "other")
    other_seed = make_tiny(tmp_path / "seed", corpus=CORPUS, seed=8, layers=2)
    assert digest(here)["model.safetensors"] != digest(other_seed)["model.safetensors"]
    assert digest(here)["tokenizer.json"] == digest(other_seed)["tokenizer.json"]


def test_making_a_model_leaves_the_random_state_alone(tmp_path: Path) -> None:
    before = torch.random.get_rng_state()
    make_tiny(tmp_path / "tiny", corpus=CORPUS, seed=1, layers=1)
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_tiny_model_is_tiny_and_loads_like_any_other(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "tiny", corpus=CORPUS, seed=1)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert 1_500_000 < model.num_parameters() < 2_500_000
    assert model.config.vocab_size == len(tokenizer)
    assert tokenizer.chat_template == TOKENIZER.chat_template
    assert model(torch.tensor([tokenizer.encode("guess 57")])).logits.shape[-1] == len(tokenizer)


def test_numbers_up_to_99_are_single_tokens_wherever_they_stand() -> None:
    for number in (0, 7, 10, 57, 99):
        (id,) = TOKENIZER.encode(str(number))
        for text in (f"between {number} and", f'{{"number": {number}}}', f"({number},{number})", f"-{number}."):
            assert id in TOKENIZER.encode(text)
    assert [TOKENIZER.decode(id) for id in TOKENIZER.encode("1234567")] == ["1", "23", "45", "67"]


def test_special_tokens_are_never_learned_from_the_corpus() -> None:
    tokenizer = make_tiny_tokenizer(["<|end|><tool_call>" * 50, *CORPUS])
    specials = {tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS}
    assert specials == set(range(len(SPECIAL_TOKENS)))
    plain = tokenizer.encode("< |end|> <tool_cal l>", add_special_tokens=False)
    assert specials.isdisjoint(plain)
    assert len(tokenizer) == len(TOKENIZER)


def test_a_call_costs_one_token_for_each_choice() -> None:
    corpus = [
        '{"name": "put", "arguments": {"key": "c", "value": 7}}',
        '{"name": "guess", "arguments": {"number": 5}}',
    ] * 9
    tokenizer = make_tiny_tokenizer(corpus)
    guess = tokenizer.encode('<tool_call>{"name": "guess", "arguments": {"number": 57}}</tool_call>')
    put = tokenizer.encode('<tool_call>{"name": "put", "arguments": {"key": "d", "value": 12}}</tool_call>')
    assert (len(guess), len(put)) == (5, 7)


def test_a_letter_is_the_same_token_in_a_prompt_and_in_a_call() -> None:
    (letter,) = TOKENIZER.encode("c")
    for text in ("left c=7, d", "want c", '{"key": "c"}', "now (c)"):
        assert letter in TOKENIZER.encode(text)


def test_tools_are_rendered_as_signatures() -> None:
    schema = {"type": "object", "properties": {"number": {"type": "integer"}, "why": {"type": "string"}}}
    function = {"name": "guess", "description": "Guess it.\nAt length.", "parameters": schema}
    prompt = TOKENIZER.apply_chat_template(
        [{"role": "system", "content": "Play."}, {"role": "user", "content": "go"}],
        tools=[{"type": "function", "function": function}],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert prompt == "<|system|>Play.\nguess(number, why): Guess it.<|end|><|user|>go<|end|><|assistant|>"


def test_calls_in_openai_form_are_rendered_too() -> None:
    call = {"type": "function", "function": {"name": "guess", "arguments": {"number": 5}}}
    prompt = TOKENIZER.apply_chat_template(
        [{"role": "user", "content": "go"}, {"role": "assistant", "content": "", "tool_calls": [call]}], tokenize=False
    )
    assert prompt.endswith('<|assistant|><tool_call>{"name": "guess", "arguments": {"number": 5}}</tool_call><|end|>')


@given(st.text())
def test_any_text_can_be_written(text: str) -> None:
    written = text.encode("utf-8", "replace").decode()
    assert TOKENIZER.decode(TOKENIZER.encode(written)) == written


def test_a_vocabulary_without_room_for_bytes_is_refused() -> None:
    with pytest.raises(ConfigError, match="alone need 364"):
        make_tiny_tokenizer(CORPUS, vocab_size=300)
