"""Messages to tokens and back, append-only. Promise 1: what was sampled is what is trained.

A transcript holds one session's tokens. Sampled ids enter it as they are and are never tokenised
again. Each observation is rendered with the whole history by the model's own template. Where the
new text extends the old text exactly, only the difference is appended; else the template rewrote
the history (thinking stripped, tools changed) and a new sequence starts. Text that the template's
syntax proves to be equal in both is not rendered (locality.py): that is most of the work of a
turn."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Any, cast

import numpy as np
from transformers import PreTrainedTokenizerBase

from ludus.errors import ConfigError, EnvironmentFailed, nearest
from ludus.openai_format import tool_to_openai
from ludus.rollout import tool_calls
from ludus.rollout.template import PLAINEST, Refused, Rendered, Shape, Template
from ludus.rollout.text import Text
from ludus.types import Action, Completion, Message, Sequence, Tool, frozen_array

_KNOWN_ENDS = ("<|eom_id|>", "<|end_of_text|>", "<|endoftext|>")
"""Ends of generation that a tokenizer does not always declare."""
_FIRST_PROMPTS = 256
"""First prompts to keep: the attempts of a group have the same one."""
_WINDOW = 12
"""Messages to render at most to prove an extension, where the template is local."""


class Chat:
    """A model's template, control tokens and tool-call format; shared by all sessions."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, tool_format: str = "auto", chat_template: str = ""
    ) -> None:
        self.text = Text(tokenizer)
        self.template = Template(tokenizer, path=chat_template)
        self.tool_format = _resolve_format(tool_format, self.template.source)
        self._newlines = "<tool_call>\\n" in self.template.source
        self._closing_glue, self.end_id, self.closes_turns = self._find_end(tokenizer.eos_token_id)
        ends = [self.end_id, tokenizer.eos_token_id, *map(self.text.control_id, _KNOWN_ENDS)]
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys(end for end in ends if end is not None))
        self._first_prompts: dict[str, Transcript] = {}

    def transcript(self) -> Transcript:
        return Transcript(self)

    def first_prompt(self, messages: Seq[Message], tools: Seq[Tool]) -> Transcript:
        """A transcript of the first prompt alone; to be copied, never continued."""
        key = repr((messages, tools))
        if key not in self._first_prompts:
            if len(self._first_prompts) >= _FIRST_PROMPTS:
                del self._first_prompts[next(iter(self._first_prompts))]
            made = self._first_prompts[key] = self.transcript()
            made.begin(messages, tools)
        return self._first_prompts[key]

    def parse(self, ids: Seq[int], *, tools: bool = True) -> Action:
        """The model's action. Without tools on offer nothing is a call: all of it is content."""
        text = self.text.decode(self.without_stop(ids))
        return tool_calls.parse(text, format=self.tool_format) if tools else Action(text.strip())

    def encode_action(self, action: Action) -> list[int]:
        """The ids that a model would sample for this action, end of turn included."""
        text = self.template.glue + self.write(action) + self._closing_glue
        return [*self.text.encode(text, begins=False), self.end_id]

    def write(self, action: Action) -> str:
        """The action as escaped text: only the markup of a call can become control tokens."""
        parts = tool_calls.write_parts(action, format=self.tool_format, newlines=self._newlines)
        return "".join(text if markup else self.text.escape(text) for text, markup in parts)

    def without_stop(self, ids: Seq[int]) -> Seq[int]:
        return ids[:-1] if ids and ids[-1] in self.stop_ids else ids

    def without_glue(self, said: str, *, closed: bool) -> str:
        """The model's text without the whitespace around it that the template adds."""
        text = said.removeprefix(self.template.glue)
        return text.removesuffix(self._closing_glue) if closed else text

    def check_tools(self, tools: Seq[Tool]) -> None:
        """Raises ConfigError where the template would not show the tools to the model."""
        if tools and not self.template.renders_tools:
            raise ConfigError(
                f"the environment offers tools ({', '.join(tool.name for tool in tools)}), but the model's chat template does "
                "not render tools; set model.chat_template to a template that does"
            )

    def _find_end(self, eos_id: int | None) -> tuple[str, int, bool]:
        """Whitespace before the end of a turn, the end's id, whether the template sets that id."""
        closing = self.template.closing.lstrip()
        ids = self.text.encode(closing, begins=False)
        if ids and self.text.is_control(ids[0]):
            return self.template.closing.removesuffix(closing), ids[0], True
        if eos_id is None:
            raise ConfigError(
                "the chat template ends a turn without a control token, and the tokenizer has no eos_token, so generation "
                "could not stop; set model.chat_template to another template"
            )
        return "", eos_id, False


class Transcript:
    """One session's tokens: `start`, then `add` and `observe` by turns, `sequences` at the end."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._shape = chat.template.shape
        self._history: list[Rendered] = []
        self._shaped: list[Rendered] = []  # the history, or a window of it, in that shape
        self._tools: list[dict[str, Any]] = []
        self._prompt: str | None = ""  # the last prompt or window; None: only its tail is known
        self._tail: str | None = None  # the prompt from its messages on, if it can be split
        self._sampled: tuple[int, ...] = ()
        self._rows: list[_Row] = []

    def start(self, messages: Seq[Message], tools: Seq[Tool] = ()) -> list[int]:
        """The first prompt."""
        assert not self._rows, "a transcript serves one session: start() was called before"
        first = self._chat.first_prompt(messages, tools)
        self._shape, self._prompt, self._tail, self._tools = first._shape, first._prompt, first._tail, first._tools
        self._history, self._shaped = first._history.copy(), first._shaped.copy()
        self._begin_row(first._rows[-1].ids, turn=0)
        return self._rows[-1].ids.copy()

    def begin(self, messages: Seq[Message], tools: Seq[Tool]) -> None:
        self._offer(tools)
        self._append(messages)
        self._begin_row(self._chat.text.encode(self._render(), begins=True), turn=0)

    def add(self, completion: Completion, *, turn: int) -> None:
        """Adds what was sampled after the last prompt, a stop id included."""
        self._rows[-1].add(completion.ids, turn=turn, completion=completion)
        self._sampled = completion.ids

    def observe(self, messages: Seq[Message], tools: Seq[Tool] | None = None) -> list[int]:
        """The next prompt. `tools` replaces the tools on offer, None keeps them."""
        if self._chat.template.local and len(self._shaped) > _WINDOW:
            self._shorten()
        shown, offered = len(self._shaped), self._tools
        if tools is not None:
            self._offer(tools)
        ids = self._chat.without_stop(self._sampled)
        said, closed = self._chat.text.decode_escaped(ids), len(ids) < len(self._sampled)
        message = {"role": "assistant", "content": self._chat.without_glue(said, closed=closed)}
        self._history.append(message)
        self._shaped.append(message)
        self._append(messages)
        before, now = self._texts(shown, offered)
        added, turn = self._added(before + said, now, closed=closed), self._rows[-1].turn + 1
        if added is not None:
            self._rows[-1].add(added, turn=turn)
        else:
            self._reshape(self._shape)  # the new row needs the whole history, not its window
            self._begin_row(self._chat.text.encode(self._render(), begins=True), turn=turn)
        return self._rows[-1].ids.copy()

    def sequences(self) -> tuple[Sequence, ...]:
        """Rows to train on, each up to its last sampled token; rows without any are left out."""
        return tuple(row.sequence() for row in self._rows if row.num_trained)

    def _begin_row(self, ids: Seq[int], *, turn: int) -> None:
        self._rows.append(_Row())
        self._rows[-1].add(ids, turn=turn)

    def _texts(self, shown: int, offered: list[dict[str, Any]]) -> tuple[str, str]:
        """The last prompt (`shown` messages, `offered` tools) and the new one, or their tails."""
        template = self._chat.template
        if self._tail is not None and self._tools == offered:
            try:
                before, now = self._tail, template.render_tail(self._shaped)
            except Refused:  # another shape may change even the first message
                now = None
            if now is not None:
                self._prompt, self._tail = None, now
                return before, now
        last = template.render(self._shaped[:shown], tools=offered) if self._prompt is None else self._prompt
        return last, self._render()

    def _added(self, before: str, now: str, *, closed: bool) -> list[int] | None:
        """The ids that the new prompt adds to `before`; None where it does not extend it."""
        if not now.startswith(before):
            return None
        ids = self._chat.text.encode(now[len(before) :], begins=False)
        if not closed or not self._chat.closes_turns:
            return ids
        # a turn that the model closed itself is not closed twice
        return ids[1:] if ids and ids[0] in self._chat.stop_ids else None

    def _offer(self, tools: Seq[Tool]) -> None:
        self._chat.check_tools(tools)
        self._tools = [_escape_all(tool_to_openai(tool), self._chat.text) for tool in tools]

    def _append(self, messages: Seq[Message]) -> None:
        rendered = [_rendered(message, self._chat) for message in messages]
        self._shaped += self._shape.apply(rendered, opening=not self._history)
        self._history += rendered

    def _shorten(self) -> None:
        """Keeps the first message and the last two, which prove the next extension."""
        window = [self._shaped[0], *self._shaped[-2:]]
        try:
            tail = self._chat.template.render_tail(window)
            prompt = self._chat.template.render(window, tools=self._tools) if tail is None else None
        except Refused:  # the template takes the whole history but not its window
            return
        self._shaped, self._prompt, self._tail = window, prompt, tail

    def _reshape(self, shape: Shape) -> None:
        self._shape, self._shaped = shape, shape.apply(self._history, opening=True)

    def _render(self) -> str:
        """The whole prompt; its tail is known from then on."""
        template = self._chat.template
        try:
            self._prompt = template.render(self._shaped, tools=self._tools)
            self._tail = template.render_tail(self._shaped)
            return self._prompt
        except Refused as refusal:
            if self._shape != PLAINEST:  # an unusual order of roles may fit the plainest shape
                self._reshape(PLAINEST)
                return self._render()
            roles = ", ".join(message["role"] for message in self._history[-6:]) or "none at all"
            raise EnvironmentFailed(
                f"the model's chat template refused the conversation: {refusal}. Roles of the last messages: {roles}. "
                "Give observations at least one user or tool message, or set model.chat_template to another template"
            ) from None


class _Row:
    """A sequence in the making."""

    def __init__(self) -> None:
        self.turn = 0
        self.num_trained = 0
        self.ids: list[int] = []
        self._pieces: list[tuple[int, int, Completion | None]] = []
        """(first token, turn, what was sampled)."""

    def add(self, ids: Seq[int], *, turn: int, completion: Completion | None = None) -> None:
        self.turn = turn
        self._pieces.append((len(self.ids), turn, completion))
        self.ids += ids
        if completion is not None:
            num = len(completion.ids)
            assert num == len(completion.logprobs) == len(completion.versions), "one logprob and version per token"
            self.num_trained = len(self.ids) if num else self.num_trained

    def sequence(self) -> Sequence:
        end = self.num_trained
        sampled, logprobs = np.zeros(end, dtype="bool"), np.zeros(end, dtype="float32")
        versions, turns = np.full(end, -1, dtype="int32"), np.zeros(end, dtype="int32")
        for begin, turn, completion in self._pieces:
            turns[begin:] = turn
            if completion is not None and completion.ids:
                place = slice(begin, begin + len(completion.ids))
                sampled[place], logprobs[place], versions[place] = True, completion.logprobs, completion.versions
        for array in (sampled, logprobs, versions, turns):
            array.setflags(write=False)
        ids = frozen_array(self.ids[:end], "int32")
        return Sequence(ids=ids, sampled=sampled, logprobs=logprobs, versions=versions, turns=turns)


def _rendered(message: Message, chat: Chat) -> Rendered:
    escape = chat.text.escape
    if message.role == "assistant":  # an example that the environment gives
        return {"role": "assistant", "content": chat.write(Action(message.content, message.tool_calls))}
    fields = {"content": message.content, "name": message.name, "tool_call_id": message.tool_call_id}
    written = {field: escape(text) for field, text in fields.items() if text or field == "content"}
    return {"role": message.role, **written}


def _escape_all(value: Any, text: Text) -> Any:
    if isinstance(value, str):
        return text.escape(value)
    if isinstance(value, Mapping):
        return {text.escape(str(key)): _escape_all(entry, text) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_escape_all(entry, text) for entry in value]
    return value


def _resolve_format(name: str, template: str) -> tool_calls.ToolFormat:
    if name == "auto":
        return tool_calls.detect(template)
    known = tool_calls.EXAMPLES
    if name not in known:
        raise ConfigError(f"model.tool_format is {name!r}; known: auto, {', '.join(known)}.{nearest(name, known)}")
    return cast(tool_calls.ToolFormat, name)
