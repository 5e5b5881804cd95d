"""A model of which only words can be had, behind `/chat/completions` with tools. Promise: what it said is handed on as it was said.

No token ids and no logprobs pass here, so what is played through this engine has no sequences and cannot be trained on. OpenAI's words for
messages and calls stop here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ludus.engines.engine import Answer
from ludus.engines.http import Wire
from ludus.openai_format import message_to_openai, read_action, tool_to_openai
from ludus.types import Message, Sampling, Tool

SEED_BITS = 31
"""Servers keep a seed in 32 bits, with a sign or without."""


class ChatServer:
    """Speaks as `model` of the server at `url`, or, if that is empty, as the only one it serves."""

    def __init__(self, url: str, *, model: str = "", max_running: int = 64, timeout_s: float = 600.0) -> None:
        self._wire = Wire(url, model=model, max_running=max_running, timeout_s=timeout_s)

    async def answer(
        self, messages: Sequence[Message], *, tools: Sequence[Tool], sampling: Sampling, session_id: str
    ) -> Answer:
        body: dict[str, Any] = {
            "messages": [message_to_openai(message) for message in messages],
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "seed": sampling.seed % 2**SEED_BITS,
            "user": session_id,
        }
        if tools:  # an empty list is refused by some servers
            body["tools"] = [tool_to_openai(tool) for tool in tools]
        choice, usage = await self._wire.choice("/chat/completions", body)
        message = choice.get("message")
        if not isinstance(message, Mapping):
            raise self._wire.lacks("a message", "is it an OpenAI-compatible chat endpoint?")
        return Answer(
            action=read_action(message),
            stop="length" if choice.get("finish_reason") == "length" else "end",
            num_prompt_tokens=_count(usage.get("prompt_tokens")),
            num_tokens=_count(usage.get("completion_tokens")),
        )

    async def model_name(self) -> str:
        return await self._wire.model_name()

    async def close(self) -> None:
        await self._wire.close()


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
