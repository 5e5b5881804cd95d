"""Messages, tools and calls in OpenAI's chat format, and back. Pure: no HTTP, no torch.

Promise: what `read_tool`, `read_call` and `read_message` accept is read completely, and
`read_action` loses no text.

    tool       {"type": "function", "function": {"name", "description", "parameters": JSON schema}}
    tool call  {"id", "type": "function", "function": {"name", "arguments": JSON as a string}}
    message    {"role", "content", "tool_calls": [...], "tool_call_id"}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast, get_args

from ludus.errors import ConfigError
from ludus.types import Action, Message, Role, Tool, ToolCall

NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


def tool_to_openai(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def call_to_openai(call: ToolCall, *, default_id: str = "call_0") -> dict[str, Any]:
    """`default_id` is for a call without an id, which the format requires."""
    function = {"name": call.name, "arguments": json.dumps(dict(call.arguments))}
    return {"id": call.id or default_id, "type": "function", "function": function}


def message_to_openai(message: Message) -> dict[str, Any]:
    """Without `name`, which not every server accepts."""
    written: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        calls = enumerate(message.tool_calls)
        written["tool_calls"] = [call_to_openai(call, default_id=f"call_{index}") for index, call in calls]
    if message.role == "tool":
        written["tool_call_id"] = message.tool_call_id or "call_0"
    return written


def action_to_openai(action: Action) -> dict[str, Any]:
    """The action as an assistant message."""
    return message_to_openai(Message("assistant", action.content, tool_calls=action.tool_calls))


def read_tool(raw: Any) -> Tool:
    function = raw.get("function") if isinstance(raw, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ConfigError(
            f"a tool is {raw!r:.300}; expected type 'function' with function.name and function.parameters"
        )
    description = str(function.get("description") or "")
    return Tool(function["name"], description, function.get("parameters") or NO_PARAMETERS)


def read_call(raw: Any, *, default_id: str = "") -> ToolCall:
    function = raw.get("function") if isinstance(raw, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ConfigError(f"a tool call is {raw!r:.300}; expected function.name and function.arguments as JSON")
    arguments, problem = read_arguments(function.get("arguments") or {})
    if problem:
        raise ConfigError(f"a tool call is {raw!r:.300}; its {problem}")
    call_id = raw.get("id")
    return ToolCall(function["name"], arguments, id=call_id if isinstance(call_id, str) and call_id else default_id)


def read_message(raw: Mapping[str, Any]) -> Message:
    role, content = raw.get("role"), raw.get("content") or ""
    if role not in get_args(Role) or not isinstance(content, str):
        raise ConfigError(
            f"a message has role {role!r:.80} and content {content!r:.300}; "
            f"expected a role of {', '.join(get_args(Role))} and text"
        )
    raw_calls = raw.get("tool_calls")
    if raw_calls is not None and not isinstance(raw_calls, list):
        raise ConfigError(f"tool_calls is {raw_calls!r:.300}; expected a list of tool calls")
    calls = tuple(map(read_call, raw_calls or ()))
    call_id, name = (str(raw.get(key) or "") for key in ("tool_call_id", "name"))
    return Message(cast(Role, role), content, tool_calls=calls, tool_call_id=call_id, name=name)


def read_arguments(raw: Any) -> tuple[dict[str, Any], str]:
    """Arguments of a call, from a JSON string or an object; or {} and what is wrong with them."""
    if raw is None or raw == "":
        return {}, ""
    try:
        value = json.loads(raw) if isinstance(raw, str) else raw
    except (ValueError, RecursionError) as error:
        return {}, f"arguments are no JSON: {error}"
    if not isinstance(value, dict):
        return {}, f"arguments are {type(value).__name__}; expected an object"
    return value, ""


def read_action(message: Mapping[str, Any]) -> Action:
    """A model's message. A call that cannot be read becomes text, and `problem` says why."""
    content = message.get("content")
    text = content if isinstance(content, str) else ""
    calls = []
    for index, raw in enumerate(message.get("tool_calls") or ()):
        try:
            calls.append(read_call(raw, default_id=f"call_{index}"))
        except ConfigError:
            written = json.dumps(raw, ensure_ascii=False)
            problem = f"The tool call could not be read: {written[:200]}. Its arguments must be a JSON object."
            return Action(f"{text}\n{written}".strip(), problem=problem)
    return Action(text.strip(), tuple(calls))
