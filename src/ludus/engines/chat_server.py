"""A model that returns text alone, behind `/chat/completions` with tools.

No token ids and no logprobs pass here, so sessions of this engine cannot be trained on. OpenAI's
format of messages and calls is known here alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ludus.engines.engine import Answer
from ludus.engines.http import Wire
from ludus.openai_format import message_to_openai, read_action, tool_to_openai
from ludus.types import Message, Sampling, Tool


class ChatServer(Wire):
    async def answer(
        self, messages: Sequence[Message], *, tools: Sequence[Tool], sampling: Sampling, session_id: str
    ) -> Answer:
        body: dict[str, Any] = {
            "messages": [message_to_openai(message) for message in messages],
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "seed": sampling.seed % 2**31,  # servers keep it in 32 bits, with a sign or without
            "user": session_id,
        }
        if tools:  # an empty list is refused by some servers
            body["tools"] = [tool_to_openai(tool) for tool in tools]
        choice, usage = await self.choice("/chat/completions", body)
        message = choice.get("message")
        if not isinstance(message, Mapping):
            raise self.lacks("a message", "is it an OpenAI-compatible chat endpoint?")
        return Answer(
            action=read_action(message),
            stop="length" if choice.get("finish_reason") == "length" else "end",
            num_prompt_tokens=_count(usage.get("prompt_tokens")),
            num_tokens=_count(usage.get("completion_tokens")),
        )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
