"""One session's words between its environment and whoever speaks, in tokens or in text.

Promise: a conversation in tokens keeps what was sampled, for training; one in text has no sequences, so it can never be trained on.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Protocol

from ludus.controller.client.client import ClientSession
from ludus.rollout import tool_calls
from ludus.rollout.chat import Chat
from ludus.rollout.speaker import Speaker, TextSpeaker, Words
from ludus.types import Action, Message, Sampling, Sequence, Tool, ToolCall


@dataclass(frozen=True, slots=True)
class Spoken:
    """What was said in one turn. `complete` is False where the limit on tokens cut it off."""

    action: Action
    complete: bool
    policy: str
    version: int
    num_prompt_tokens: int
    num_tokens: int


class Conversation(Protocol):
    """`start`, then `speak` and `observe` by turns."""

    @property
    def num_prompt_tokens(self) -> int:
        """Of the next prompt; in text only as far as the server told."""
        ...

    def start(self, messages: Seq[Message], tools: Seq[Tool]) -> None: ...

    def observe(self, messages: Seq[Message], tools: Seq[Tool] | None) -> None:
        """`tools` replaces the tools on offer, None keeps them."""
        ...

    async def speak(self, *, turn: int, sampling: Sampling, session: ClientSession) -> Spoken: ...

    def sequences(self) -> tuple[Sequence, ...]: ...


class History:
    """What was said, in messages as a server wants them: every call has an id, and every call of the last turn a result."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._tools: tuple[Tool, ...] = ()
        self._unanswered: list[str] = []
        self._nameless: list[str] = []  # those of them that had no id of their own: their results have none either

    def words(self) -> Words:
        return Words(tuple(self._messages), self._tools)

    def start(self, messages: Seq[Message], tools: Seq[Tool]) -> None:
        self._messages, self._tools = list(messages), tuple(tools)

    def observe(self, messages: Seq[Message], tools: Seq[Tool] | None) -> None:
        if tools is not None:
            self._tools = tuple(tools)
        names = iter(self._nameless)
        named = [_named(message, names) for message in messages]
        self._messages += answering(named, self._unanswered)

    def say(self, said: Action) -> None:
        place = len(self._messages)
        calls = tuple(
            call if call.id else ToolCall(call.name, call.arguments, id=f"call_{place}_{n}")
            for n, call in enumerate(said.tool_calls)
        )
        self._messages.append(Message("assistant", said.content, tool_calls=calls))
        self._unanswered = [call.id for call in calls]
        self._nameless = [call.id for call, own in zip(calls, said.tool_calls, strict=True) if not own.id]


class InTokens:
    def __init__(self, chat: Chat, speaker: Speaker, *, session_id: str) -> None:
        self._chat, self._speaker, self._session_id = chat, speaker, session_id
        self._transcript, self._history = chat.transcript(), History()
        self._prompt_ids: list[int] = []
        self._has_tools = False

    @property
    def num_prompt_tokens(self) -> int:
        return len(self._prompt_ids)

    def start(self, messages: Seq[Message], tools: Seq[Tool]) -> None:
        self._has_tools = bool(tools)
        self._history.start(messages, tools)
        self._prompt_ids = self._transcript.start(messages, tools)

    def observe(self, messages: Seq[Message], tools: Seq[Tool] | None) -> None:
        if tools is not None:
            self._has_tools = bool(tools)
        self._history.observe(messages, tools)
        self._prompt_ids = self._transcript.observe(messages, tools)

    async def speak(self, *, turn: int, sampling: Sampling, session: ClientSession) -> Spoken:
        completion = await self._speaker.speak(
            self._prompt_ids,
            sampling=replace(sampling, stop_ids=self._chat.stop_ids),
            session_id=self._session_id,
            session=session,
            words=self._history.words(),
        )
        self._transcript.speak(completion, turn=turn)
        action = self._chat.parse(completion.ids, tools=self._has_tools)
        self._history.say(action)
        return Spoken(
            action=action,
            complete=completion.stop == "end",
            policy=completion.policy,
            version=completion.versions[0] if completion.versions else 0,
            num_prompt_tokens=len(self._prompt_ids),
            num_tokens=len(completion.ids),
        )

    def sequences(self) -> tuple[Sequence, ...]:
        return self._transcript.sequences()


class InText:
    """The history is kept as messages, each of the model's turns as it was said."""

    def __init__(self, speaker: TextSpeaker, *, session_id: str) -> None:
        self._speaker, self._session_id, self._history = speaker, session_id, History()
        self.num_prompt_tokens = 0

    def start(self, messages: Seq[Message], tools: Seq[Tool]) -> None:
        self._history.start(messages, tools)

    def observe(self, messages: Seq[Message], tools: Seq[Tool] | None) -> None:
        self._history.observe(messages, tools)

    async def speak(self, *, turn: int, sampling: Sampling, session: ClientSession) -> Spoken:
        words = self._history.words()
        answer = await self._speaker.answer(
            words.messages, tools=words.tools, sampling=sampling, session_id=self._session_id, session=session
        )
        self._history.say(answer.action)
        self.num_prompt_tokens = answer.num_prompt_tokens + answer.num_tokens
        return Spoken(
            action=read(answer.action) if words.tools else answer.action,
            complete=answer.stop == "end",
            policy=answer.policy,
            version=0,
            num_prompt_tokens=answer.num_prompt_tokens,
            num_tokens=answer.num_tokens,
        )

    def sequences(self) -> tuple[Sequence, ...]:
        return ()


def read(said: Action) -> Action:
    """The calls that a server left in the text, because it does not know how this model writes them."""
    if said.tool_calls or said.problem:
        return said
    return tool_calls.parse(said.content, format=tool_calls.detect(said.content))


def _named(message: Message, names: Iterator[str]) -> Message:
    """A result without an id answers the next of the calls that had none."""
    nameless = message.role == "tool" and not message.tool_call_id
    return replace(message, tool_call_id=next(names, "")) if nameless else message


def answering(messages: Seq[Message], unanswered: Seq[str]) -> list[Message]:
    """The messages with one result for each open call, first of all: a result that answers no call is said by the user instead."""
    results = {message.tool_call_id: message for message in messages if message.role == "tool"}
    loose = [message for message in messages if message.role != "tool" or message.tool_call_id not in unanswered]
    answers = [results.get(id) or Message("tool", "not carried out", tool_call_id=id) for id in unanswered]
    return [*answers, *(replace(each, role="user") if each.role == "tool" else each for each in loose)]
