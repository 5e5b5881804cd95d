"""A model's chat template. Promise: what it cannot carry is reshaped or refused, never lost.

Templates differ in what they accept: no system message, no tool messages, strict alternation of
user and assistant. A few probe conversations find the shape that a template takes, and every
conversation is then put into that shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import jinja2
from transformers import PreTrainedTokenizerBase
from transformers.utils import chat_template_utils

from ludus.errors import ConfigError, describe
from ludus.rollout.locality import is_local, is_verbatim, tail

Rendered = dict[str, Any]
"""A message as a template sees it, its strings escaped."""
Tail = Callable[[Sequence[Rendered]], str]

_WORDS = ("ludusalpha", "ludusbeta", "ludusgamma", "ludusdelta")
_PROBE_TOOL = {
    "type": "function",
    "function": {"name": _WORDS[0], "description": _WORDS[1], "parameters": {"type": "object", "properties": {}}},
}
_DATE = "26 Jul 2024"
"""Llama's templates write today's date unless given one: prompts must not change overnight."""
_BLANK = "\U0010fffe"
_FORMS = 1024
"""Forms to keep, one per sequence of roles."""


class Refused(Exception):
    """The template raised; the message is the template's own."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a conversation must be changed before the template takes it."""

    system: Literal["anywhere", "first", "never"] = "anywhere"
    tool_as_user: bool = False
    merge: bool = False
    """Messages of one role in a row become one message."""

    def apply(self, messages: Sequence[Rendered], *, opening: bool) -> list[Rendered]:
        shaped: list[Rendered] = []
        for index, message in enumerate(messages):
            message = {**message, "role": self._role(message["role"], first=opening and index == 0)}
            if self.merge and shaped and shaped[-1]["role"] == message["role"]:
                shaped[-1]["content"] += "\n\n" + message["content"]
            else:
                shaped.append(message)
        return shaped

    def _role(self, role: str, *, first: bool) -> str:
        if role == "tool" and self.tool_as_user:
            return "user"
        if role == "system" and (self.system == "never" or (self.system == "first" and not first)):
            return "user"
        return role


PLAINEST = Shape(system="never", tool_as_user=True, merge=True)


class Template:
    """The `shape` it takes, the whitespace (`glue`) before an assistant's text and the `closing`
    after it, whether it `renders_tools`, and whether it is `local` (see locality.py)."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, path: str = "") -> None:
        self._tokenizer = tokenizer
        self.source = _source(tokenizer, path)
        self.local = is_local(self.source)
        given = {**tokenizer.special_tokens_map, "add_generation_prompt": True, "date_string": _DATE}
        self._tail = _compiled_tail(self.source, given=given) if self.local else None
        self.shape = self._calibrate_shape()
        self.glue, self.closing = self._calibrate_turn()
        self.renders_tools = not self._loses([("user", 2)], tools=[_PROBE_TOOL], words=_WORDS[:1])

    def render(self, messages: Sequence[Rendered], *, tools: Sequence[dict[str, Any]] | None) -> str:
        """The prompt for the next turn. Raises Refused when the template does."""
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) if tools else None,
                chat_template=self.source,
                add_generation_prompt=True,
                tokenize=False,
                date_string=_DATE,
            )
        except Exception as error:  # third-party code: it may fail in any way
            raise Refused(describe(error)) from error
        assert isinstance(text, str)
        return text

    def render_tail(self, messages: Sequence[Rendered]) -> str | None:
        """The prompt without the text before its messages; None where it cannot be split there."""
        if self._tail is None or not self.local:
            return None
        try:
            return self._tail(messages)
        except Exception as error:
            raise Refused(describe(error)) from error

    def _loses(
        self, roles: Sequence[tuple[str, int]], *, tools: list[dict[str, Any]] | None = None, words: Sequence[str] = ()
    ) -> str:
        """Why the prompt lacks a message's word, or has them in another order; else empty."""
        messages = [{"role": role, "content": _WORDS[index]} for role, index in roles]
        try:
            text = self.render(messages, tools=tools)
        except Refused as refused:
            return str(refused)
        position = 0
        for word in words or [message["content"] for message in messages]:
            position = text.find(word, position) + 1
            if position == 0:
                return "its text is missing"
        return ""

    def _calibrate_shape(self) -> Shape:
        if reason := self._loses([("user", 0)]):
            raise ConfigError(
                f"the chat template cannot render one user message ({reason}); give another with model.chat_template"
            )
        shape = Shape()
        opening, twice = [("user", 0), ("assistant", 1)], [("user", 0), ("user", 1)]
        if self._loses([("system", 0), ("user", 1)]) or self._loses([("system", 0)]):
            shape = replace(shape, system="never")
        elif self._loses([*opening, ("system", 2)]):
            shape = replace(shape, system="first")
        if self._loses([*opening, ("tool", 2)]):
            shape = replace(shape, tool_as_user=True)
        doubled = twice if shape.tool_as_user else [("tool", 2), ("user", 3)]
        return replace(shape, merge=bool(self._loses(twice) or self._loses([*opening, *doubled])))

    def _calibrate_turn(self) -> tuple[str, str]:
        user = {"role": "user", "content": _WORDS[0]}
        assistant = {"role": "assistant", "content": _WORDS[1]}
        prompt = self.render([user], tools=None)
        try:
            text = self.render([user, assistant, {**user, "content": _WORDS[2]}], tools=None)
        except Refused as refused:
            raise ConfigError(
                f"the chat template refuses a second turn: {refused}; give another with model.chat_template"
            ) from None
        said = text.find(_WORDS[1])
        between = text[len(prompt) : said] if text.startswith(prompt) else ""
        return (between if between.isspace() else ""), text[said + len(_WORDS[1]) :]


def _source(tokenizer: PreTrainedTokenizerBase, path: str) -> str:
    if path:
        try:
            return Path(path).read_text()
        except OSError as error:
            raise ConfigError(
                f"model.chat_template is {path!r}, which cannot be read: {describe(error)}; expected a Jinja file"
            ) from None
    try:
        return str(tokenizer.get_chat_template())
    except ValueError:
        raise ConfigError(
            "this model's tokenizer has no chat template; give one as a Jinja file with model.chat_template, or use an instruct model"
        ) from None


def _compiled_tail(source: str, *, given: dict[str, Any]) -> Tail | None:
    """Compiled in transformers' sandbox; `apply_chat_template` would copy every message first."""
    compiler = getattr(chat_template_utils, "_compile_jinja_template", None)
    if compiler is None:  # not a public name: without it every prompt is rendered whole
        return None
    sandbox: jinja2.Environment = compiler(source).environment
    rest = tail(sandbox.parse(source))
    if rest is None:
        return None
    compiled = jinja2.Template.from_code(sandbox, sandbox.compile(rest), sandbox.make_globals(None))
    if not is_verbatim(rest) or _BLANK in source:
        return lambda messages: compiled.render(given, messages=messages)

    @lru_cache(_FORMS)
    def form(kinds: Sequence[tuple[str, ...]]) -> list[str | tuple[int, str]]:
        """Text and blanks (message, field) for messages of these roles and fields."""
        blanks = {f"{index} {field}": (index, field) for index, (_, *fields) in enumerate(kinds) for field in fields}
        messages = [
            {field: f"{_BLANK}{index} {field}{_BLANK}" for field in fields} | {"role": role}
            for index, (role, *fields) in enumerate(kinds)
        ]
        parts = compiled.render(given, messages=messages).split(_BLANK)
        return [blanks[part] if number % 2 else part for number, part in enumerate(parts)]

    def filled(messages: Sequence[Rendered]) -> str:
        parts = form(tuple([(each["role"], *each) for each in messages]))
        return "".join([part if isinstance(part, str) else messages[part[0]][part[1]] for part in parts])

    return filled
