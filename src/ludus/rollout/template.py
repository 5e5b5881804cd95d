"""A model's chat template: rendering, and what the template can carry. Promise: what it cannot carry is reshaped or refused, never lost.

Templates differ in what they accept: no system message, no tool messages, strict alternation of user and assistant. One look at a few
probe conversations tells, and every conversation is then put into the shape that the template takes.
"""

from __future__ import annotations

from collections.abc import Sequence
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

_WORDS = ("ludusalpha", "ludusbeta", "ludusgamma", "ludusdelta")
_PROBE_TOOL = {
    "type": "function",
    "function": {"name": _WORDS[0], "description": _WORDS[1], "parameters": {"type": "object", "properties": {}}},
}
_DATE = "26 Jul 2024"
"""Llama's templates write today's date unless told one: prompts must not change overnight."""
_BLANK = "\U0010fffe"
_FORMS = 1024
"""Rows of roles whose forms are kept."""


class Refused(Exception):
    """The template raised; the message is the template's own."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What must happen to a conversation before the template takes it."""

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
    """What was found out about a template once: the `shape` it takes; the whitespace (`glue`) it sets before what an assistant says and
    the `closing` after it; whether it `renders_tools`; whether it is `local` (see locality.py)."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, path: str = "") -> None:
        self._tokenizer = tokenizer
        self.source = _source(tokenizer, path)
        self.local = is_local(self.source)
        given = {**tokenizer.special_tokens_map, "add_generation_prompt": True, "date_string": _DATE}
        self._tail = _compiled_tail(self.source, given=given) if self.local else None
        self.shape = self._calibrate_shape()
        self.glue, self.closing = self._calibrate_turn()
        self.renders_tools = self._carries([("user", 2)], tools=[_PROBE_TOOL], words=_WORDS[:1])

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
        except Exception as error:  # a template is foreign code: it may fail in any way
            raise Refused(describe(error)) from error
        assert isinstance(text, str)
        return text

    def render_tail(self, messages: Sequence[Rendered]) -> str | None:
        """The same prompt without the text before its messages, which two prompts with one first message and the same tools share. None
        where the template's syntax does not prove that. Raises Refused when the template does."""
        if self._tail is None or not self.local:
            return None
        try:
            return self._tail(messages)
        except Exception as error:
            raise Refused(describe(error)) from error

    def _carries(
        self, roles: Sequence[tuple[str, int]], *, tools: list[dict[str, Any]] | None = None, words: Sequence[str] = ()
    ) -> bool:
        """Whether each message's word shows up, in order."""
        messages = [{"role": role, "content": _WORDS[index]} for role, index in roles]
        try:
            text = self.render(messages, tools=tools)
        except Refused:
            return False
        position = 0
        for word in words or [message["content"] for message in messages]:
            position = text.find(word, position) + 1
            if position == 0:
                return False
        return True

    def _calibrate_shape(self) -> Shape:
        if not self._carries([("user", 0)]):
            raise ConfigError(
                f"the chat template cannot render one user message ({self._refusal()}); give another with model.chat_template"
            )
        shape = Shape()
        if not self._carries([("system", 0), ("user", 1)]) or not self._carries([("system", 0)]):
            shape = replace(shape, system="never")
        elif not self._carries([("user", 0), ("assistant", 1), ("system", 2)]):
            shape = replace(shape, system="first")
        if not self._carries([("user", 0), ("assistant", 1), ("tool", 2)]):
            shape = replace(shape, tool_as_user=True)
        doubled = [("user", 0), ("user", 1)] if shape.tool_as_user else [("tool", 2), ("user", 3)]
        opening = [("user", 0), ("assistant", 1)]
        merge = not self._carries([("user", 0), ("user", 1)]) or not self._carries([*opening, *doubled])
        return replace(shape, merge=merge)

    def _refusal(self) -> str:
        try:
            self.render([{"role": "user", "content": _WORDS[0]}], tools=None)
        except Refused as refused:
            return str(refused)
        return "its text is missing"

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


class _Tail:
    """A template's tail, compiled. Where it writes words as they are, it is rendered once for each row of roles, and filled in."""

    def __init__(self, compiled: jinja2.Template, *, given: dict[str, Any], verbatim: bool) -> None:
        self._compiled, self._given, self._verbatim = compiled, given, verbatim
        self._form = lru_cache(_FORMS)(self._make_form)

    def __call__(self, messages: Sequence[Rendered]) -> str:
        if not self._verbatim:
            return self._compiled.render(self._given, messages=messages)
        form = self._form(tuple([(each["role"], *each) for each in messages]))
        return "".join([part if isinstance(part, str) else messages[part[0]][part[1]] for part in form])

    def _make_form(self, kinds: Sequence[tuple[str, ...]]) -> list[str | tuple[int, str]]:
        """`kinds` are messages' roles, each with the fields that it has."""
        messages = [
            {field: f"{_BLANK}{index} {field}{_BLANK}" for field in fields} | {"role": role}
            for index, (role, *fields) in enumerate(kinds)
        ]
        parts = self._compiled.render(self._given, messages=messages).split(_BLANK)
        return [_blank(part) if number % 2 else part for number, part in enumerate(parts)]


def _blank(text: str) -> tuple[int, str]:
    index, field = text.split()
    return int(index), field


def _compiled_tail(source: str, *, given: dict[str, Any]) -> _Tail | None:
    """Compiled in the sandbox in which transformers renders. `apply_chat_template` would copy every message first, because its callers put
    rich objects there; ours are strings."""
    compile = getattr(chat_template_utils, "_compile_jinja_template", None)
    if compile is None:  # not a public name: without it every prompt is rendered whole
        return None
    sandbox: jinja2.Environment = compile(source).environment
    rest = tail(sandbox.parse(source))
    if rest is None:
        return None
    verbatim = is_verbatim(rest) and _BLANK not in source
    compiled = jinja2.Template.from_code(sandbox, sandbox.compile(rest), sandbox.make_globals(None))
    return _Tail(compiled, given=given, verbatim=verbatim)
