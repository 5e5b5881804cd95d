"""AgentBench's DBBench items, from its `standard.jsonl`.

The columns of an item are all TEXT, as DBBench's own setup makes them.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from ludus.worlds.files import read_jsonl

_WRITES = ("INSERT", "UPDATE", "DELETE")


def read_dbbench(path: Path) -> list[dict[str, Any]]:
    return read_jsonl(path, _task, option="dbbench", expected="an item of AgentBench's standard.jsonl")


def _task(number: int, item: dict[str, Any]) -> dict[str, Any]:
    kind = item["type"][0]
    tables = item["table"] if isinstance(item["table"], list) else [item["table"]]
    task = {
        "id": f"dbbench-{number - 1}",
        "category": kind,
        "question": "\n".join(filter(None, (item["description"], item.get("add_description", "")))),
        "tables": [_table(table) for table in tables],
    }
    if kind in _WRITES:  # the hash is the text of a query result: `[('<md5>',)]`
        md5 = str(ast.literal_eval(item["answer_md5"])[0][0])
        return task | {"sql": item["label"][0], "answers": ["done"], "hash": md5}
    return task | {"sql": item["sql"]["query"], "answers": [str(answer) for answer in item["label"]]}


def _table(plain: dict[str, Any]) -> dict[str, Any]:
    columns = [[column["name"], "TEXT"] for column in plain["table_info"]["columns"]]
    return {"name": plain["table_name"], "columns": columns, "rows": plain["table_info"]["rows"]}
