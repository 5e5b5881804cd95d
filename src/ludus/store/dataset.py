"""A run's trajectories as a folder for Hugging Face's `datasets`. Promise: all rows have the same
columns of the same types, whatever the environments.

    DATASET/README.md     the dataset card, with the list of files
    DATASET/train.jsonl   one trajectory per line; dev and test if the run has any

Messages have OpenAI's form. Arguments of calls, and tools, are JSON strings, because as columns
they would differ between environments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ludus.errors import ConfigError
from ludus.openai_format import call_to_openai, tool_to_openai
from ludus.store.lines import encode_line, naming_failure
from ludus.store.trajectories import StoredTrajectory
from ludus.types import Message, Trajectory

CARD = """---
configs:
- config_name: default
  data_files:
{files}
---

# {name}

{num} trajectories written by Ludus: sessions of {environments}.

`messages` is the conversation in OpenAI's form, `tools` the functions offered at its start as JSON, `reward` the environment's reward.
Load it with `datasets.load_dataset("{name}")`.
"""


def write_dataset(folder: Path, stored: Iterable[StoredTrajectory]) -> Path:
    """Writes the scored trajectories; the policy did not end the others."""
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
                    f"split {split!r} cannot be a file name; expected letters, digits, and . _ + - inside it"
                )
            (folder / f"{split}.jsonl").write_bytes(b"".join(rows))
        files = "\n".join(f"  - split: {split}\n    path: {split}.jsonl" for split in lines)
        num = sum(map(len, lines.values()))
        card = CARD.format(files=files, name=folder.name, num=num, environments=", ".join(sorted(environments)))
        (folder / "README.md").write_text(card, encoding="utf-8")
    return folder


def to_row(trajectory: Trajectory) -> dict[str, Any]:
    messages = list(trajectory.start.messages)
    for turn in trajectory.turns:
        # Solvers and models that write calls as text give no ids, but a result must name its call.
        calls = tuple(
            replace(call, id=call.id or f"call_{turn.index}_{place}")
            for place, call in enumerate(turn.action.tool_calls)
        )
        messages.append(Message("assistant", turn.action.content, tool_calls=calls))
        messages += _answering(turn.observation.messages, [call.id for call in calls])
    return {
        "id": trajectory.id,
        "environment": trajectory.task.environment,
        "task": trajectory.task.id,
        "reward": float(trajectory.reward),
        "success": trajectory.success,
        "stop": trajectory.stop.value,
        "num_turns": len(trajectory.turns),
        "messages": [_message(message) for message in messages],
        "tools": json.dumps([tool_to_openai(tool) for tool in trajectory.start.tools or ()]),
    }


def _answering(messages: Iterable[Message], ids: list[str]) -> Iterator[Message]:
    unnamed = iter(ids)
    for message in messages:
        is_unnamed = message.role == "tool" and not message.tool_call_id
        yield replace(message, tool_call_id=next(unnamed, "")) if is_unnamed else message


def _message(message: Message) -> dict[str, Any]:
    return {
        "role": message.role,
        "content": message.content,
        "tool_calls": [call_to_openai(call, default_id="") for call in message.tool_calls],
        "tool_call_id": message.tool_call_id,
    }
