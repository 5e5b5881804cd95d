"""Questions about a database, and changes to it, through SQL.

The tables are the session's own: in this process with SQLite, or with `url` on a MariaDB, MySQL or
PostgreSQL server. Committing ends the session: 1 for the right answer or, after a change, for the
right tables, else 0; the reply does not tell which. Tasks are generated; with `dbbench` the test
split is AgentBench's file (and dev its dev.jsonl, if `dbbench` is a folder).
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated, Any

import msgspec
from pydantic import Field

from ludus.environments import Reply, tool
from ludus.types import ToolCall
from ludus.worlds.database import generated, grading
from ludus.worlds.database.dbbench import read_dbbench
from ludus.worlds.database.servers import open_server
from ludus.worlds.database.store import MAX_QUERY_CHARS, QueryRefused, SqliteStore, Table
from ludus.worlds.drawing import draw_split

_MAX_ANSWERS = 1_000


class Database:
    """Answer the question about the database, or make the change that is asked for. Look with execute_sql as often as you need.
    Then call commit_final_answer once: it ends the session. After a change its answers do not matter."""

    capabilities = ("tool use", "reasoning")

    def __init__(self, *, dbbench: str = "", url: str = "", max_turns: Annotated[int, Field(ge=2)] = 15) -> None:
        """dbbench: AgentBench's standard.jsonl, or its folder, as test tasks; url: a server such as
        mysql://user:password@host:3306."""
        self.dbbench, self.url, self.max_turns = dbbench, url, max_turns

    def tasks(self, split: str) -> list[dict[str, Any]]:
        if self.dbbench and (file := self._file(split)):
            return read_dbbench(file)
        return draw_split(generated.draw, split=split, seed="database")

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        self.task, self.looked = task, False
        self.tables = msgspec.convert(task["tables"], tuple[Table, ...])
        self.store = open_server(self.url, self.tables) if self.url else SqliteStore(self.tables)
        return str(task["question"])

    @tool
    def execute_sql(self, query: str) -> Reply:
        """Run one SQL statement.

        query: the statement"""
        if len(query) > MAX_QUERY_CHARS:
            return Reply(f"error: the query has {len(query)} characters; at most {MAX_QUERY_CHARS}", invalid=True)
        try:
            return Reply(self.store.execute(query))
        except QueryRefused as refusal:
            return Reply(f"error: {refusal}", invalid=True)

    @tool
    def commit_final_answer(self, answers: list[str]) -> Reply:
        """Finish with the answer. A list of values, in any order; a number as a string.

        answers: the values"""
        right = len(answers) <= _MAX_ANSWERS and self._right(answers)
        return Reply("committed", reward=float(right), done=True)

    def solve(self) -> ToolCall:
        if not self.looked:
            self.looked = True
            return ToolCall("execute_sql", {"query": self.task["sql"]})
        return ToolCall("commit_final_answer", {"answers": self.task["answers"]})

    def random_action(self, rng: random.Random) -> ToolCall:
        table = rng.choice(self.tables)
        if rng.random() < 0.5:
            return ToolCall("execute_sql", {"query": f'SELECT * FROM "{table.name}" LIMIT {rng.randint(1, 9)}'})
        cells = [str(cell) for row in table.rows for cell in row] or ["1"]
        return ToolCall("commit_final_answer", {"answers": [rng.choice(cells)]})

    def close(self) -> None:
        if hasattr(self, "store"):
            self.store.close()

    def _right(self, answers: list[str]) -> bool:
        if "hash" in self.task:
            found = [self.store.rows(table.name) for table in self.tables]
            hashes = sorted(grading.table_hash(rows) for rows in found if rows is not None)
            return len(hashes) == len(found) and "_".join(hashes) == self.task["hash"]
        if self.task["category"] in generated.WRITES:
            wanted = generated.after(self.tables, self.task["sql"])
            now = [self.store.rows(table.name) for table in self.tables]
            return all(grading.same_rows(rows, gold) for rows, gold in zip(now, wanted, strict=True))
        return grading.same_answers(answers, self.task["answers"])

    def _file(self, split: str) -> Path | None:
        path = Path(self.dbbench).expanduser()
        if not path.is_dir():
            return path if split == "test" else None
        file = path / {"test": "standard.jsonl", "dev": "dev.jsonl"}.get(split, "")
        return file if split != "train" and (file.is_file() or split == "test") else None
