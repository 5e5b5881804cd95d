"""A new model of two million parameters, for tests and for training on a CPU in minutes.

Promise: the same corpus and seed give the same files, byte for byte, in any process. The
architecture is Llama, the tokenizer byte-level BPE trained on the corpus, which can encode any
text; special tokens come from the chat template alone, never from the corpus.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ludus.errors import ConfigError
from ludus.models.loading.save import save_model

END, PAD = "<|end|>", "<|pad|>"
SPECIAL_TOKENS = (END, PAD, "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<tool_call>", "</tool_call>")
DIGIT_PAIRS = tuple(f"{number:02d}" for number in range(100))

# A tiny model chooses and copies: a choice should be one token, a thing the same token everywhere.
# - Fixed parts of a call (`{"name": "put", "arguments": {"key": "`) are one piece, not ten.
# - Numbers are split into pairs of digits from the right: 0 to 99 are single tokens.
# - A space before a single letter or number belongs to the word before it: `c` is always one token.
PIECES = Regex(
    r"\{\"name\": \"[A-Za-z_]+\", \"arguments\": \{(?:\"[A-Za-z_]+\": \"?)?"
    r"|\"?, \"[A-Za-z_]+\": \"?"
    r"|\"?\}\}"
    r"|[0-9]{1,2}(?=(?:[0-9]{2})*(?![0-9]))"
    r"| ?[A-Za-z]{2,}(?: (?=[0-9]|[A-Za-z]\b))?"
    r"|[A-Za-z]"
    r"|[^A-Za-z0-9\s]+(?: [^A-Za-z0-9\s]+)*(?: (?=[0-9]|[A-Za-z]\b))?"
    r"|\s+"
)


def make_tiny(
    folder: str | Path,
    *,
    corpus: Iterable[str],
    seed: int,
    vocab_size: int = 1024,
    layers: int = 4,
    hidden: int = 192,
    context: int = 2048,
) -> Path:
    """Writes a newly initialised model, and a tokenizer trained on the texts of `corpus`."""
    tokenizer = make_tiny_tokenizer(corpus, vocab_size=vocab_size, context=context)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=hidden * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=max(1, hidden // 96),  # reads of the cache bound decoding
        max_position_embeddings=context,
        tie_word_embeddings=True,
        initializer_range=0.06,  # near 1 / sqrt(hidden): the usual 0.02 learns slower
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return save_model(folder, model=model, tokenizer=tokenizer)


def make_tiny_tokenizer(
    corpus: Iterable[str], *, vocab_size: int = 1024, context: int = 2048
) -> PreTrainedTokenizerFast:
    least = len(SPECIAL_TOKENS) + 256 + len(DIGIT_PAIRS)
    if vocab_size < least:
        raise ConfigError(f"vocab_size is {vocab_size}; bytes, digit pairs and special tokens alone need {least}")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_trained(corpus, vocab_size=vocab_size),
        eos_token=END,
        pad_token=PAD,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = files("ludus.models").joinpath("templates", "tiny.jinja").read_text()
    return tokenizer


def _trained(corpus: Iterable[str], *, vocab_size: int) -> Tokenizer:
    learned = _pipeline(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS) - len(DIGIT_PAIRS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learned.train_from_iterator(_training_texts(corpus), trainer=trainer)
    vocabulary = learned.get_vocab()
    entries = [*SPECIAL_TOKENS, *sorted(vocabulary, key=vocabulary.__getitem__), *DIGIT_PAIRS]
    merges = [(left, right) for left, right in (*DIGIT_PAIRS, *json.loads(learned.to_str())["model"]["merges"])]
    backend = _pipeline(models.BPE(vocab={text: index for index, text in enumerate(entries)}, merges=merges))
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS])
    return backend


def _pipeline(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    pieces = pre_tokenizers.Split(PIECES, behavior="isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _training_texts(corpus: Iterable[str]) -> Iterator[str]:
    """Without special tokens, and with 0 for every number: both already have tokens."""
    special = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
    for text in corpus:
        yield from special.split(re.sub("[0-9]+", "0", text))
