"""Tokenizers with habits of their own: control tokens in the vocabulary, tokens that swallow whitespace, words among the added tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ludus.errors import ConfigError
from ludus.rollout.text import Text
from tests.rollout.families import chat_of


def characters(*, end: AddedToken) -> PreTrainedTokenizerFast:
    """A Unigram tokenizer of single characters, with <|end|> as an ordinary entry of its vocabulary too."""
    pieces = [("<unk>", 0.0), ("<|end|>", 0.0), *((chr(code), -2.0) for code in range(32, 127)), ("\n", -2.0)]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    backend.pre_tokenizer = pre_tokenizers.Split("\t", behavior="isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([end])
    backend.add_tokens([AddedToken("cat", normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="<|end|>")


PLAIN = AddedToken("<|end|>", special=True, normalized=False)


def test_a_control_token_that_the_vocabulary_lists_is_out_of_reach_for_plain_text() -> None:
    tokenizer = characters(end=PLAIN)
    text = Text(tokenizer)
    end = tokenizer.eos_token_id
    assert end in tokenizer.encode("a<|end|>b", add_special_tokens=False)
    assert end not in text.encode(text.escape("a<|end|>b"), begins=True)
    assert text.encode("a<|end|>b", begins=True).count(end) == 1
    assert text.decode(text.encode(text.escape("a<|end|>b"), begins=True)) == "a<|end|>b"


def test_added_words_are_found_in_text_of_any_origin() -> None:
    tokenizer = characters(end=PLAIN)
    text = Text(tokenizer)
    for sentence in ("a cat", "cat<|end|>the cat sat", "concatenate"):
        assert text.encode(sentence, begins=True) == tokenizer.encode(sentence, add_special_tokens=False)
    assert tokenizer.convert_tokens_to_ids("cat") in text.encode(text.escape("a cat"), begins=True)


@pytest.mark.parametrize("sides", [{"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True}])
def test_a_control_token_swallows_the_whitespace_that_the_tokenizer_lets_it_swallow(sides: dict[str, bool]) -> None:
    tokenizer = characters(end=AddedToken("<|end|>", special=True, normalized=False, **sides))
    sentence = "a \n<|end|>\n b<|end|>"
    assert Text(tokenizer).encode(sentence, begins=True) == tokenizer.encode(sentence, add_special_tokens=False)


def test_a_tokenizer_without_a_fast_version_is_refused() -> None:
    with pytest.raises(ConfigError, match="fast version"):
        Text(object())  # type: ignore[arg-type]


@given(st.text())
def test_any_text_survives_escaping(text: str) -> None:
    coder = chat_of("tiny").text
    written = text.encode("utf-8", "replace").decode()
    assert coder.decode(coder.encode(coder.escape(text), begins=True)) == (written if "\ufffd" not in text else text)


@given(st.lists(st.integers(0, 400), max_size=12))
def test_whatever_ids_a_model_samples_can_be_put_before_a_template(ids: list[int]) -> None:
    coder = chat_of("tiny").text
    kept = [id for id in coder.encode(coder.decode_escaped(ids), begins=True) if coder.is_control(id)]
    assert kept == [id for id in ids if coder.is_control(id)]
