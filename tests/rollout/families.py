"""Small tokenizers and chat templates in the manner of the common model families, each with its trap."""

from __future__ import annotations

import json
from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ludus.models.loading.tiny import make_tiny_tokenizer
from ludus.rollout.chat import Chat

CORPUS = [
    "the quick brown fox jumps over the lazy dog, guess a number between 3 and 97: too low, too high!\n\n",
    '{"name": "guess", "arguments": {"number": 5}} user assistant system tool You are helpful. <think> ',
] * 3

QWEN = """
{%- if tools -%}
{{- '<|im_start|>system\\n' + (messages[0].content if messages[0].role == 'system' else 'You are helpful.') -}}
{{- '\\n\\n# Tools\\n<tools>' -}}
{%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}
{{- '\\n</tools>\\nCall with <tool_call>\\n{"name": NAME, "arguments": OBJECT}\\n</tool_call><|im_end|>\\n' -}}
{%- elif messages[0].role == 'system' -%}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' -}}
{%- else -%}
{{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) or message.role == 'assistant' -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- elif message.role == 'tool' -%}
{%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' -}}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

# Thinking is shown only after the last thing a user asked.
QWEN3 = """
{%- if tools -%}
{{- '<|im_start|>system\\n# Tools' -}}
{%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}
{{- '\\n<tool_call>\\n{"name": NAME}\\n</tool_call><|im_end|>\\n' -}}
{%- endif -%}
{%- set ns = namespace(asked=-1) -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set ns.asked = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- set said = message.content -%}
{%- if message.role == 'assistant' and '</think>' in said and loop.index0 < ns.asked -%}
{%- set said = said.split('</think>')[-1].lstrip('\\n') -%}
{%- endif -%}
{{- '<|im_start|>' + message.role + '\\n' + said + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

# Everything is trimmed, and today's date is in the prompt.
LLAMA3 = """
{{- bos_token -}}
{%- if not date_string is defined -%}{%- set date_string = strftime_now('%d %b %Y') -%}{%- endif -%}
{%- if messages[0].role == 'system' -%}
{%- set opening = messages[0].content | trim -%}{%- set messages = messages[1:] -%}
{%- else -%}{%- set opening = '' -%}{%- endif -%}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday: ' + date_string + '\\n' + opening -}}
{%- if tools -%}{{- '\\nAnswer with {"name": NAME, "parameters": OBJECT}\\n' -}}
{%- for tool in tools -%}{{- tool | tojson(indent=4) + '\\n' -}}{%- endfor -%}{%- endif -%}
{{- '<|eot_id|>' -}}
{%- for message in messages -%}
{%- set role = 'ipython' if message.role == 'tool' else message.role -%}
{{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}
"""

# No system role, no tool role, strict alternation, and a space before what the assistant says.
MISTRAL = """
{{- bos_token -}}
{%- for message in messages -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}{{- raise_exception('roles must alternate') -}}{%- endif -%}
{%- if message.role == 'user' -%}
{%- if tools and loop.last -%}{{- '[AVAILABLE_TOOLS] ' + (tools | tojson) + '[/AVAILABLE_TOOLS]' -}}{%- endif -%}
{{- '[INST] ' + message.content + ' [/INST]' -}}
{%- elif message.role == 'assistant' -%}{{- ' ' + message.content + eos_token -}}
{%- else -%}{{- raise_exception('unknown role ' + message.role) -}}{%- endif -%}
{%- endfor -%}
"""

# As the model ships it: tools are ignored.
SMOLLM2 = """
{%- for message in messages -%}
{%- if loop.first and messages[0]['role'] != 'system' -%}{{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' -}}{%- endif -%}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

_PIECES = Regex(  # line ends stay together whatever follows, as in Llama 3 and Qwen
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_MARKUP = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
FAMILIES = ("tiny", "qwen", "qwen3", "llama3", "mistral", "smollm2")


@cache
def tokenizer_of(family: str) -> PreTrainedTokenizerFast:
    if family == "tiny":
        return make_tiny_tokenizer(CORPUS, vocab_size=500)
    if family == "qwen":
        return _byte_level(QWEN, special=_CHATML, markup=_MARKUP, eos="<|im_end|>")
    if family == "qwen3":
        return _byte_level(QWEN3, special=_CHATML, markup=[*_MARKUP, "<think>", "</think>"], eos="<|im_end|>")
    if family == "llama3":
        headers = ["<|begin_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|start_header_id|>", "<|end_header_id|>"]
        special = [*headers, "<|python_tag|>", "<|end_of_text|>"]
        return _byte_level(LLAMA3, special=special, markup=[], eos="<|eot_id|>", bos="<|begin_of_text|>")
    if family == "mistral":
        return _sentencepiece(MISTRAL)
    return _byte_level(SMOLLM2, special=_CHATML, markup=[], eos="<|im_end|>")


@cache
def chat_of(family: str) -> Chat:
    return Chat(tokenizer_of(family))


def _byte_level(
    template: str, *, special: list[str], markup: list[str], eos: str, bos: str | None = None
) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(_PIECES, behavior="isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(CORPUS, trainer=trainer)
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in markup])
    backend.add_tokens([AddedToken(" " * 4, special=False, normalized=False)])  # a run of spaces is text, not markup
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos, bos_token=bos)
    tokenizer.chat_template = template
    return tokenizer


def _sentencepiece(template: str) -> PreTrainedTokenizerFast:
    """A space is a character of its own, the first text gets one in front, and control tokens sit in the vocabulary."""
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    learned = Tokenizer(models.BPE(unk_token="<unk>"))
    learned.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special + byte_tokens, show_progress=False)
    learned.train_from_iterator(CORPUS, trainer=trainer)
    merges = [tuple(pair) for pair in json.loads(learned.to_str())["model"]["merges"]]
    backend = Tokenizer(
        models.BPE(vocab=learned.get_vocab(), merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.pre_tokenizer = learned.pre_tokenizer
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    tokenizer.chat_template = template
    return tokenizer
