"""A run's trajectories as a folder that Hugging Face's `datasets` loads. Promise: every row has the same columns of the same types,
whatever the environments.

    DATASET/README.md     the dataset card, with the list of files
    DATASET/train.jsonl   one trajectory per line; dev and test where there are any

Messages are OpenAI's, arguments of calls and the tools as strings of JSON: as columns they would differ from world to world. JSON lines,
because they need no package to write and any editor to read; `datasets` turns them into Arrow by itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ludus.errors import ConfigError
from ludus.openai_format import tool_to_openai
from ludus.store.lines import encode_line, naming_failure
from ludus.store.trajectories import StoredTrajectory
from ludus.types import Message, ToolCall, Trajectory

CARD = """---
configs:
- config_name: default
  data_files:
{files}
---

# {name}

{num} trajectories written by Ludus: sessions of {environments}.

`messages` is the conversation in OpenAI's form, `tools` the functions on offer at its start as JSON, `reward` what the environment gave.
Load it with `datasets.load_dataset("{name}")`.
"""


def write_dataset(folder: Path, stored: Iterable[StoredTrajectory]) -> Path:
    """Scored trajectories only: the others were ended by the world."""
    with naming_failure("write", folder):
        folder.mkdir(parents=True, exist_ok=True)
        lines: dict[str, list[bytes]] = {}
        environments: set[str] = set()
        for each in stored:
            if each.trajectory.stop.scored:
                lines.setdefault(each.split, []).append(encode_line(to_row(each.trajectory)))
                environments.add(each.trajectory.task.environment)
        for split, rows in lines.items():
            if not re.fullmatch(r"[\w+-][\w.+-]*", split):
                raise ConfigError(
                    f"split {split!r} cannot be the name of a file; expected letters, digits, and . _ + - inside"
                )
            (folder / f"{split}.jsonl").write_bytes(b"".join(rows))
        files = "\n".join(f"  - split: {split}\n    path: {split}.jsonl" for split in lines)
        num = sum(map(len, lines.values()))
        card = CARD.format(files=files, name=folder.name, num=num, environments=", ".join(sorted(environments)))
        (folder / "README.md").write_text(card, encoding="utf-8")
    return folder


def to_row(trajectory: Trajectory) -> dict[str, Any]:
    messages = [_message(message) for message in trajectory.start.messages]
    for turn in trajectory.turns:
        calls = tuple(_with_id(call, f"call_{turn.index}_{place}") for place, call in enumerate(turn.action.tool_calls))
        messages.append(_message(Message("assistant", turn.action.content, tool_calls=calls)))
        messages += [_message(each) for each in _answering(turn.observation.messages, [call.id for call in calls])]
    return {
        "id": trajectory.id,
        "environment": trajectory.task.environment,
        "task": trajectory.task.id,
        "reward": float(trajectory.reward),
        "success": trajectory.success,
        "stop": trajectory.stop.value,
        "num_turns": len(trajectory.turns),
        "messages": messages,
        "tools": json.dumps([tool_to_openai(tool) for tool in trajectory.start.tools or ()]),
    }


def _with_id(call: ToolCall, id: str) -> ToolCall:
    """Models that write calls as text, and solvers, give none; a result must name the call that it answers."""
    return call if call.id else replace(call, id=id)


def _answering(messages: Iterable[Message], ids: list[str]) -> Iterator[Message]:
    unnamed = iter(ids)
    for message in messages:
        if message.role == "tool" and not message.tool_call_id:
            message = replace(message, tool_call_id=next(unnamed, ""))
        yield message


def _message(message: Message) -> dict[str, Any]:
    return {
        "role": message.role,
        "content": message.content,
        "tool_calls": [_call(call) for call in message.tool_calls],
        "tool_call_id": message.tool_call_id,
    }


def _call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
    }
