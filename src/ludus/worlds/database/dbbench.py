"""AgentBench's DBBench items, from its `standard.jsonl`. Promise: a file that cannot be read is named, with the line.

An item's columns are all TEXT, as its own setup makes them.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from ludus.errors import ConfigError

_WRITES = ("INSERT", "UPDATE", "DELETE")


def read_dbbench(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"dbbench: {str(path)!r} cannot be read: {error}. Expected AgentBench's standard.jsonl"
        ) from error
    return [_task(line, index=i, path=path) for i, line in enumerate(lines) if line.strip()]


def _task(line: str, *, index: int, path: Path) -> dict[str, Any]:
    try:
        item = json.loads(line)
        kind = item["type"][0]
        tables = item["table"] if isinstance(item["table"], list) else [item["table"]]
        task = {
            "id": f"dbbench-{index}",
            "category": kind,
            "question": "\n".join(filter(None, (item["description"], item.get("add_description", "")))),
            "tables": [_table(table) for table in tables],
        }
        if kind in _WRITES:
            return task | {"sql": item["label"][0], "answers": ["done"], "hash": _hash(item["answer_md5"])}
        return task | {"sql": item["sql"]["query"], "answers": [str(answer) for answer in item["label"]]}
    except (ValueError, KeyError, TypeError, IndexError, SyntaxError) as error:
        raise ConfigError(f"dbbench: line {index + 1} of {str(path)!r} is no DBBench item: {error!r}") from error


def _table(plain: dict[str, Any]) -> dict[str, Any]:
    columns = [[column["name"], "TEXT"] for column in plain["table_info"]["columns"]]
    return {"name": plain["table_name"], "columns": columns, "rows": plain["table_info"]["rows"]}


def _hash(text: str) -> str:
    """The file holds it as the text of a result: `[('<md5>',)]`."""
    return str(ast.literal_eval(text)[0][0])
