"""Tool calls in text. Promise: `parse` never raises, and `parse(write(a)) == a`.

    hermes    <tool_call>{"name": "guess", "arguments": {"number": 5}}</tool_call>, several in a row
              (Qwen, Hermes, our tiny model)
    smollm2   <tool_call>[{"name": ..., "arguments": ...}, ...]</tool_call>
    llama3    <|python_tag|>{"name": ..., "parameters": {...}}; ..., or the bare JSON
    json      a ```json fence, or the bare JSON

A call that was attempted and cannot be read sets `problem`, the sentence that the model gets. So
does a call in another format's wrapping: it is not carried out, because only the format earns the
reward."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ludus.types import Action, ToolCall

ToolFormat = Literal["hermes", "llama3", "smollm2", "json"]

EXAMPLES: Mapping[ToolFormat, str] = {
    "hermes": '<tool_call>{"name": "TOOL", "arguments": {...}}</tool_call>',
    "smollm2": '<tool_call>[{"name": "TOOL", "arguments": {...}}]</tool_call>',
    "llama3": '{"name": "TOOL", "parameters": {...}}',
    "json": '{"name": "TOOL", "arguments": {...}}',
}
_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_FENCE = re.compile(r"```(?:json|tool_call)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_CALL_LIKE = re.compile(r'[\[{]\s*"(?:name|function|tool|tool_name|arguments|parameters)"\s*:')
_MARKUP = re.compile(r"<(?=/?tool_call>|/think>|\|python_tag\|>)|`(?=``)")
"""Text in a JSON string that would read as markup; it is written as an escape."""
_PYTHON_TAG = "<|python_tag|>"
_Found = tuple[int, int, str]
"""Start and end of text that is meant as calls, and the body to read."""


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


class _Unreadable(Exception):
    """The reason, as a sentence for the model."""


def detect(chat_template: str) -> ToolFormat:
    """The format a chat template teaches."""
    if "<tool_call>[" in chat_template:
        return "smollm2"
    if "<tool_call>" in chat_template:
        return "hermes"
    if _PYTHON_TAG in chat_template or "<|start_header_id|>" in chat_template:
        return "llama3"
    return "json"


def parse(text: str, *, format: ToolFormat) -> Action:
    """Content and calls of `text`. Calls count after a closed <think> block, not inside it."""
    thought = text.rfind("</think>")
    spoken_from = thought + len("</think>") if thought >= 0 else 0
    found = _find(text, spoken_from, format)
    content = _without(text, found)
    if not found:
        return Action(content, problem=_near_miss(text[spoken_from:], format))
    try:
        return Action(content, tuple(call for _, _, body in found for call in _read(body, format)))
    except _Unreadable as unreadable:
        return Action(content, problem=f"The tool call could not be read: {unreadable} Write {EXAMPLES[format]}")


def read_from_text(action: Action) -> Action:
    """Reads calls that a server left in the text because it does not know the model's format."""
    if action.tool_calls or action.problem:
        return action
    return parse(action.content, format=detect(action.content))


def write(action: Action, *, format: ToolFormat, newlines: bool = False) -> str:
    """The text that `parse` reads back. `newlines`: tags and JSON on own lines, as Qwen writes."""
    return "".join(text for text, _ in write_parts(action, format=format, newlines=newlines))


def write_parts(action: Action, *, format: ToolFormat, newlines: bool = False) -> list[tuple[str, bool]]:
    """The same in pieces of (text, is markup): only markup may become special tokens."""
    parts: list[tuple[str, bool]] = [(action.content, False)]
    if not action.tool_calls:
        return parts
    if action.content:
        parts.append(("\n", False))
    line = "\n" if newlines else ""
    bodies = [_body(call, format) for call in action.tool_calls]
    if format == "smollm2":
        bodies = [f"[{', '.join(bodies)}]"]
    if format in ("hermes", "smollm2"):
        for index, body in enumerate(bodies):
            parts += [(line if index else "", False), ("<tool_call>", True), (f"{line}{body}{line}", False)]
            parts.append(("</tool_call>", True))
        return parts
    if format == "llama3":
        return [*parts, (_PYTHON_TAG, True), ("; ".join(bodies), False)]
    listed = bodies[0] if len(bodies) == 1 else f"[{', '.join(bodies)}]"
    return [*parts, (f"```json\n{listed}\n```", False)]


def _body(call: ToolCall, format: ToolFormat) -> str:
    key = "parameters" if format == "llama3" else "arguments"
    entry = {"name": call.name, key: dict(call.arguments), **({"id": call.id} if call.id else {})}
    return _MARKUP.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(entry, ensure_ascii=False))


def _find(text: str, start: int, format: ToolFormat) -> list[_Found]:
    if format in ("hermes", "smollm2"):
        return [(match.start(), match.end(), match[1]) for match in _TAGGED.finditer(text, start)]
    if format == "llama3" and (tag := text.find(_PYTHON_TAG, start)) >= 0:
        return [(tag, len(text), text[tag + len(_PYTHON_TAG) :])]
    if format == "json":
        fences = [(m.start(), m.end(), m[1]) for m in _FENCE.finditer(text, start) if _CALL_LIKE.search(m[1])]
        if fences:
            return fences
    return _find_bare(text, start)


def _find_bare(text: str, start: int) -> list[_Found]:
    """Bare JSON: from what first looks like a call to the end of the last readable value."""
    begin = _CALL_LIKE.search(text, start)
    if begin is None:
        return []
    outer = text.rfind("[", start, begin.start())
    first = outer if outer >= 0 and not text[outer + 1 : begin.start()].strip() else begin.start()
    _, end = _values(text, first)
    end = len(text) if end is None else end
    return [(first, end, text[first:end])]


def _values(text: str, start: int) -> tuple[list[Any], int | None]:
    """JSON values between whitespace, commas and semicolons, and the end of the last (or None)."""
    values: list[Any] = []
    position, end = start, None
    while text.startswith(("{", "["), position):
        try:
            value, position = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            break
        values.append(value)
        end = position
        while position < len(text) and text[position] in " \t\r\n,;":
            position += 1
    return values, end


def _read(body: str, format: ToolFormat) -> list[ToolCall]:
    stripped = body.strip()
    values, end = _values(stripped, 0)
    if end is None:
        raise _Unreadable(_why_broken(stripped))
    if stripped[end:].strip(" \t\r\n,;"):
        raise _Unreadable(f"there is text after the JSON: {_quote(stripped[end:].strip())}.")
    entries: list[Any] = [entry for value in values for entry in (value if isinstance(value, list) else [value])]
    if format == "smollm2" and not isinstance(values[0], list):
        raise _Unreadable("the calls must be a JSON list.")
    if format == "hermes" and isinstance(values[0], list):
        raise _Unreadable("expected one JSON object between the tags, got a list.")
    if not entries:
        raise _Unreadable("the list of calls is empty.")
    return [_call(entry) for entry in entries]


def _why_broken(text: str) -> str:
    if not text:
        return "it is empty."
    try:
        _DECODER.decode(text)
    except RecursionError:
        return "the JSON is nested too deeply."
    except ValueError as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)[:60]
        return f"the JSON is broken ({reason}): {_quote(text)}."
    return f"expected a JSON object, got {_quote(text)}."


def _call(entry: Any) -> ToolCall:
    if isinstance(entry, Mapping) and isinstance(entry.get("function"), Mapping):
        entry = entry["function"]
    if not isinstance(entry, Mapping):
        raise _Unreadable(f"expected a JSON object, got {_quote(json.dumps(entry))}.")
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise _Unreadable(
            '"name" is missing.' if name is None else f'"name" must be a string, got {_quote(json.dumps(name))}.'
        )
    arguments = entry.get("arguments", entry.get("parameters", {}))
    if isinstance(arguments, str):  # OpenAI's own habit: the arguments as a string of JSON
        arguments = _nested(arguments)
    if not isinstance(arguments, Mapping):
        raise _Unreadable(f'"arguments" must be an object, got {_quote(json.dumps(arguments))}.')
    call_id = entry.get("id")
    return ToolCall(name, dict(arguments), call_id if isinstance(call_id, str) else "")


def _nested(text: str) -> Any:
    try:
        return _DECODER.decode(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text


def _near_miss(text: str, format: ToolFormat) -> str:
    """A problem where the text has a call in another format; empty for plain text."""
    wrapped = "<tool_call>" in text or "</tool_call>" in text or _PYTHON_TAG in text
    if not wrapped and not _CALL_LIKE.search(text):
        return ""
    return f"That looks like a tool call, but not in the format that is read here. Write {EXAMPLES[format]}"


def _without(text: str, found: Sequence[_Found]) -> str:
    kept, position = [], 0
    for start, end, _ in found:
        kept.append(text[position:start])
        position = end
    return "".join([*kept, text[position:]]).strip()


def _quote(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
