"""Text to tokens and back. Promise: only a template's own text becomes control tokens.

A tokenizer turns the characters "<|im_end|>" into the end of a turn, whoever wrote them. So text
from an environment is escaped before it enters a chat template: each character with which a control
token could begin or end is replaced by a private pair, which passes through trimming, splitting and
JSON unharmed. After rendering, whatever still reads as a control token is the template's; the rest
is unescaped and encoded by a copy of the tokenizer without control tokens. For ordinary text the
ids are the tokenizer's own, because text between two control tokens is encoded as one piece."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerBase

from ludus.errors import ConfigError

_ESCAPE = "\U0010fffd"  # private use; escaped itself where it occurs in a text
_SURROGATES = re.compile("[\ud800-\udfff]")
_ANCHOR = "a"
_REMEMBERED = 4096
"""Short texts whose ids are cached: environments and templates repeat themselves."""
_SHORT = 256
"""Characters of a short text."""
_REMEMBERED_LONG = 256
_LONG = 8192
"""Characters of a cached long text, such as a system message with its tools."""
_SAMPLED = 512
"""Ids of a turn whose text is cached: it is read twice, and attempts often repeat it."""


class Text:
    """A tokenizer that tells control tokens from text that only looks like them."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise ConfigError(
                f"tokenizer {type(tokenizer).__name__} has no fast version, which is needed to tell text from control tokens; "
                "use a model that ships a tokenizer.json"
            )
        added = backend.get_added_tokens_decoder()
        self._control = {token.content: key for key, token in added.items() if _is_control(token)}
        self._control_text = {key: text for text, key in self._control.items()}
        self._control_pattern = _pattern(self._control)
        self._swallows_left = {token.content for token in added.values() if token.lstrip}
        self._swallows_right = {token.content for token in added.values() if token.rstrip}
        self._words = {token.content: key for key, token in added.items() if not _is_control(token)}
        self._words_pattern = _pattern(self._words)
        self._escapes, self._plain_of = _escape_tables(self._control)
        self._backend = backend
        self._first, self._rest = _plain_backends(backend, control=self._control)
        self._remembered = lru_cache(_REMEMBERED)(self._plain_ids)
        self._remembered_long = lru_cache(_REMEMBERED_LONG)(self._plain_ids)
        self._heard = lru_cache(_REMEMBERED)(self._decode_both)
        self._anchor_ids = self._rest.encode(_ANCHOR, add_special_tokens=False).ids
        self._anchor_text = backend.decode(self._anchor_ids, skip_special_tokens=False)

    def is_control(self, token: int) -> bool:
        return token in self._control_text

    def control_id(self, text: str) -> int | None:
        return self._control.get(text)

    def escape(self, text: str) -> str:
        """For text from an environment. Lone surrogates become the replacement character."""
        if not text.isascii():
            text = _SURROGATES.sub("\ufffd", text)
        return text.translate(self._escapes)

    def encode(self, text: str, *, begins: bool) -> list[int]:
        """Ids of rendered text. Some tokenizers treat text that `begins` a conversation apart."""
        ids: list[int] = []
        position = 0
        for match in self._control_pattern.finditer(text):
            before, token = text[position : match.start()], match[0]
            before = before.rstrip() if token in self._swallows_left else before
            ids += self._encode_plain(before, begins=begins and not position)
            ids.append(self._control[token])
            position = match.end()
            if token in self._swallows_right:
                position += len(text) - position - len(text[position:].lstrip())
        ids += self._encode_plain(text[position:], begins=begins and not position)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return self._decoded(ids)[0]

    def decode_escaped(self, ids: Sequence[int]) -> str:
        """Sampled text for a template: text that only looks like a control token is escaped.

        Only whole look-alikes: the template must recognise markup, such as <think>, to strip it."""
        return self._decoded(ids)[1]

    def _decoded(self, ids: Sequence[int]) -> tuple[str, str]:
        return self._heard(tuple(ids)) if len(ids) <= _SAMPLED else self._decode_both(ids)

    def _decode_both(self, ids: Sequence[int]) -> tuple[str, str]:
        runs = list(self._runs(ids))
        escaped = (
            text if control else self._control_pattern.sub(lambda match: self.escape(match[0]), text)
            for text, control in runs
        )
        return "".join(text for text, _ in runs), "".join(escaped)

    def _runs(self, ids: Sequence[int]) -> Iterator[tuple[str, bool]]:
        run: list[int] = []
        for token in ids:
            if token in self._control_text:
                yield self._decode_run(run), False
                yield self._control_text[token], True
                run = []
            else:
                run.append(token)
        yield self._decode_run(run), False

    def _decode_run(self, ids: list[int]) -> str:
        """Some decoders drop a leading space; an anchor in front keeps it."""
        if not ids:
            return ""
        return self._backend.decode([*self._anchor_ids, *ids], skip_special_tokens=False)[len(self._anchor_text) :]

    def _encode_plain(self, text: str, *, begins: bool) -> Sequence[int]:
        if not text:
            return ()
        if len(text) <= _SHORT:
            return self._remembered(text, begins)
        return self._remembered_long(text, begins) if len(text) <= _LONG else self._plain_ids(text, begins)

    def _plain_ids(self, text: str, begins: bool) -> tuple[int, ...]:
        if _ESCAPE in text:
            text = re.sub(f"{_ESCAPE}(.)", lambda match: self._plain_of.get(match[1], match[0]), text)
        backend = self._first if begins else self._rest
        ids: list[int] = []
        position = 0
        if self._words:
            for match in self._words_pattern.finditer(text):
                ids += backend.encode(text[position : match.start()], add_special_tokens=False).ids
                ids.append(self._words[match[0]])
                position, backend = match.end(), self._rest
        return (*ids, *backend.encode(text[position:] if position else text, add_special_tokens=False).ids)


def _is_control(token: AddedToken) -> bool:
    """Special tokens and markup, not the whitespace runs and words that some tokenizers add."""
    return bool(token.special or re.search(r"[^\w\s]", token.content))


def _pattern(texts: Iterable[str]) -> re.Pattern[str]:
    """Longest first, as the tokenizer matches."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=lambda text: (-len(text), text)))) or "(?!)")


def _escape_tables(control: Iterable[str]) -> tuple[dict[int, str], dict[str, str]]:
    edges = sorted({edge for text in control for edge in (text[0], text[-1])})
    codes = {character: chr(0xE000 + index) for index, character in enumerate([_ESCAPE, *edges])}
    return (
        {ord(character): _ESCAPE + code for character, code in codes.items()},
        {code: character for character, code in codes.items()},
    )


def _plain_backends(backend: Tokenizer, *, control: dict[str, int]) -> tuple[Tokenizer, Tokenizer]:
    """Copies without added tokens: for text that begins a conversation, and for all other text."""
    settings = json.loads(backend.to_str())
    settings.update(added_tokens=[], post_processor=None, truncation=None, padding=None)
    plain = Tokenizer.from_str(json.dumps(settings))

    def reaches(text: str, token: int) -> bool:
        return any(token in plain.encode(each, add_special_tokens=False).ids for each in (text, f"a{text}a"))

    if reachable := [text for text, token in control.items() if reaches(text, token)]:
        _forget(settings["model"], reachable)
        plain = Tokenizer.from_str(json.dumps(settings))
    return plain, _without_first_space(settings) or plain


def _forget(model: dict[str, Any], texts: list[str]) -> None:
    """Removes control tokens that a vocabulary also lists as ordinary entries."""
    gone = set(texts) - {model.get("unk_token")}
    if isinstance(model["vocab"], dict):
        model["vocab"] = {text: token for text, token in model["vocab"].items() if text not in gone}
    else:  # Unigram: an id is a position, so the entry stays and can never match
        nothing = "\U0010ffff" * 8
        model["vocab"] = [
            [nothing + str(i) if text in gone else text, score] for i, (text, score) in enumerate(model["vocab"])
        ]


def _without_first_space(settings: dict[str, Any]) -> Tokenizer | None:
    """For SentencePiece-style tokenizers, which put a space before the first text only."""
    text = json.dumps(settings["pre_tokenizer"])
    if '"prepend_scheme": "first"' not in text:
        return None
    pre_tokenizer = json.loads(text.replace('"prepend_scheme": "first"', '"prepend_scheme": "never"'))
    return Tokenizer.from_str(json.dumps({**settings, "pre_tokenizer": pre_tokenizer}))
