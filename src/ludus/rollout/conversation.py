"""One session's conversation, as chat history and, where there is a chat, as tokens.

Promise: a conversation in tokens keeps what was sampled, for training; one in text has no
sequences, so it can never be trained on.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace

from ludus.engines.engine import Answer
from ludus.rollout import tool_calls
from ludus.rollout.chat import Chat
from ludus.rollout.sampler import Prompt
from ludus.types import Action, Completion, Message, Observation, Sequence, Tool, ToolCall, Turn


class Conversation:
    """`start`, then `add` and `observe` by turns.

    As servers want it, every call in the history has an id, and those of the last turn results."""

    def __init__(self, chat: Chat | None) -> None:
        self._chat, self._transcript = chat, chat.transcript() if chat else None
        self._ids: list[int] = []
        self._messages: list[Message] = []
        self._tools: tuple[Tool, ...] = ()
        self._unanswered: list[str] = []
        self._unnamed: list[str] = []  # those of them that had no id: nor have their results
        self.num_prompt_tokens = 0
        """Of the next prompt; in text as far as the server reports it."""

    def prompt(self) -> Prompt:
        return Prompt(self._ids, tuple(self._messages), self._tools)

    def start(self, messages: Seq[Message], tools: Seq[Tool]) -> None:
        self._messages, self._tools = list(messages), tuple(tools)
        if self._transcript is not None:
            self._ids = self._transcript.start(messages, tools)
            self.num_prompt_tokens = len(self._ids)

    def observe(self, messages: Seq[Message], tools: Seq[Tool] | None) -> None:
        """`tools` replaces the tools on offer, None keeps them."""
        if tools is not None:
            self._tools = tuple(tools)
        unnamed = iter(self._unnamed)
        self._messages += answering([_named(message, unnamed) for message in messages], self._unanswered)
        if self._transcript is not None:
            self._ids = self._transcript.observe(messages, tools)
            self.num_prompt_tokens = len(self._ids)

    def add(self, said: Completion | Answer, *, turn: int) -> Turn:
        """The turn in which this was said, still without an observation."""
        if isinstance(said, Answer):
            assert self._transcript is None, "an answer in text has no place in a conversation in tokens"
            self._remember(said.action)
            self.num_prompt_tokens = said.num_prompt_tokens + said.num_tokens
            action = tool_calls.read_from_text(said.action) if self._tools else said.action
            version, num_prompt, num = 0, said.num_prompt_tokens, said.num_tokens
        else:
            assert self._chat is not None, "only a chat can read tokens"
            assert self._transcript is not None
            self._transcript.add(said, turn=turn)
            action = self._chat.parse(said.ids, tools=bool(self._tools))
            self._remember(action)
            version, num_prompt, num = next(iter(said.versions), 0), len(self._ids), len(said.ids)
        return Turn(turn, action, Observation(), said.policy, version, num_prompt_tokens=num_prompt, num_tokens=num)

    def sequences(self) -> tuple[Sequence, ...]:
        return () if self._transcript is None else self._transcript.sequences()

    def _remember(self, said: Action) -> None:
        place = len(self._messages)
        calls = tuple(
            call if call.id else ToolCall(call.name, call.arguments, id=f"call_{place}_{n}")
            for n, call in enumerate(said.tool_calls)
        )
        self._messages.append(Message("assistant", said.content, tool_calls=calls))
        self._unanswered = [call.id for call in calls]
        self._unnamed = [call.id for call, own in zip(calls, said.tool_calls, strict=True) if not own.id]


def _named(message: Message, names: Iterator[str]) -> Message:
    """A result without an id answers the next of the calls that had none."""
    unnamed = message.role == "tool" and not message.tool_call_id
    return replace(message, tool_call_id=next(names, "")) if unnamed else message


def answering(messages: Seq[Message], unanswered: Seq[str]) -> list[Message]:
    """`messages` after a result for each open call; results of no call become user messages."""
    results = {message.tool_call_id: message for message in messages if message.role == "tool"}
    loose = [message for message in messages if message.role != "tool" or message.tool_call_id not in unanswered]
    answers = [results.get(call) or Message("tool", "not carried out", tool_call_id=call) for call in unanswered]
    return [*answers, *(replace(each, role="user") if each.role == "tool" else each for each in loose)]
