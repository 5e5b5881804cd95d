"""A model of which only words can be had, behind `/chat/completions` with tools. Promise: what it said is handed on as it was said.

No token ids and no logprobs pass here, so what is played through this engine has no sequences and cannot be trained on. OpenAI's words for
messages and calls stop here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ludus.engines.engine import Answer
from ludus.engines.http import Wire
from ludus.types import Action, Message, Sampling, Tool, ToolCall

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
            "messages": [to_openai(message) for message in messages],
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "seed": sampling.seed % 2**SEED_BITS,
            "user": session_id,
        }
        if tools:  # an empty list is refused by some servers
            body["tools"] = [tool.openai() for tool in tools]
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


def to_openai(message: Message) -> dict[str, Any]:
    """A message as the protocol writes it; arguments of calls are a string of JSON there."""
    written: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        written["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
            }
            for call in message.tool_calls
        ]
    if message.role == "tool":
        written["tool_call_id"] = message.tool_call_id
    return written


def read_action(message: Mapping[str, Any]) -> Action:
    """What the message says and calls. A call that cannot be read becomes text, and the action's problem says why."""
    content = message.get("content")
    text = content if isinstance(content, str) else ""
    calls = []
    for index, raw in enumerate(message.get("tool_calls") or ()):
        call = _call(raw, index)
        if call is None:
            said = json.dumps(raw, ensure_ascii=False)
            problem = f"The tool call could not be read: {said[:200]}. Its arguments must be a JSON object."
            return Action(f"{text}\n{said}".strip(), problem=problem)
        calls.append(call)
    return Action(text.strip(), tuple(calls))


def _call(raw: Any, index: int) -> ToolCall | None:
    function = raw.get("function") if isinstance(raw, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        return None
    arguments = function.get("arguments") or {}
    try:
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return None
    if not isinstance(arguments, dict):
        return None
    id = raw.get("id")
    return ToolCall(function["name"], arguments, id=id if isinstance(id, str) and id else f"call_{index}")


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
