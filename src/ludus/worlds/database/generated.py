"""Generated tasks: two related tables of one of ten subjects, and a templated question or change.

Promise: the answer comes from running the gold SQL, so question and answer agree; no answer is
empty, tied or nothing, and every change changes something.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ludus.worlds.database.store import SqliteStore, Table
from ludus.worlds.drawing import split_of
from ludus.worlds.files import own_data, word_lists

_DATA = own_data("database/generated.toml")
_WORDS = word_lists("database")
_PEOPLE = [f"{first} {last}" for first in _WORDS["first"] for last in _WORDS["last"]]
_THINGS = [f"{adjective} {noun}" for adjective in _WORDS["adjectives"] for noun in _WORDS["nouns"]]


@dataclass(frozen=True)
class Side:
    """One of the two tables of a subject: a text column with few values, and columns of numbers."""

    table: str
    one: str
    text: str
    values: str
    numbers: dict[str, list[int]]
    people: bool = False

    @property
    def rows_named(self) -> list[str]:
        return _PEOPLE if self.people else _THINGS


SUBJECTS = [(Side(**subject["parent"]), Side(**subject["child"])) for subject in _DATA["subjects"]]
"""A subject is a parent table and a child table."""


@dataclass(frozen=True)
class Scene:
    parent: Side
    child: Side
    tables: tuple[Table, Table]
    rng: random.Random

    def names(self) -> dict[str, Any]:
        """What templates can name without a draw. p_: parent, c_: child."""
        names: dict[str, Any] = {"numbers": list(self.child.numbers)}
        for short, side in (("p", self.parent), ("c", self.child)):
            names |= {f"{short}_{field}": getattr(side, field) for field in ("table", "one", "text")}
            names[f"{short}_key"] = f"{side.one}_id"
        return names | {"joined": "{c_table} c JOIN {p_table} p ON c.{p_key} = p.{p_key}".format_map(names)}

    def value(self, column: str, *, parent: bool = False) -> Any:
        table = self.tables[0 if parent else 1]
        at = [name for name, _ in table.columns].index(column)
        return self.rng.choice(table.rows)[at]


Names = dict[str, Any]
_DRAWN: dict[str, Callable[[Scene, Names], Any]] = {
    "n": lambda s, names: s.rng.choice(names["numbers"]),
    "number": lambda s, names: s.value(names["n"]),
    "range": lambda s, names: sorted((s.value(names["n"]), s.value(names["n"]))),
    "name": lambda s, names: s.value("name"),
    "text": lambda s, names: s.value(names["c_text"]),
    "extreme": lambda s, names: s.rng.choice((("highest", "MAX"), ("lowest", "MIN"))),
    "parent": lambda s, names: s.value("name", parent=True),
    "parent_text": lambda s, names: s.value(names["p_text"], parent=True),
    "parent_key": lambda s, names: s.value(names["p_key"], parent=True),
    "by": lambda s, names: s.rng.randint(1, 50),
    "small": lambda s, names: s.rng.randint(1, 99),
    "fresh": lambda s, names: s.rng.randint(*s.child.numbers[names["n"]]),
    "each": lambda s, names: [s.rng.randint(*span) for span in s.child.numbers.values()],
    "key": lambda s, names: 100 + s.rng.randint(0, 99),
    "title": lambda s, names: s.rng.choice(s.child.rows_named),
}
"""How a template draws each of its values, given the names so far."""


@dataclass(frozen=True)
class Template:
    """`draws` names what is drawn, in this order; `question` and `sql` are filled in with it."""

    draws: list[str]
    question: str
    sql: str

    def fill(self, scene: Scene) -> tuple[str, str]:
        names = scene.names()
        for draw in self.draws:
            names[draw] = _DRAWN[draw](scene, names)
        return self.question.format_map(names), self.sql.format_map(names)


SELECTS = {name: Template(**row) for name, row in _DATA["select"].items()}
WRITES = {name: Template(**row) for name, row in _DATA["write"].items()}
_TEMPLATES = SELECTS | WRITES
_KINDS = (*SELECTS, *WRITES, *WRITES)
"""Writes count twice, because they have fewer templates."""
_ONE_ANSWER = {"largest", "second", "commonest", "busiest"}
"""Kinds whose question is ambiguous if there is a tie."""


def draw(rng: random.Random, *, split: str) -> dict[str, Any]:
    """A task: category, question, tables, gold SQL, answers. Its question is in no other split."""
    while True:
        kind = rng.choice(_KINDS)
        scene = _scene(rng)
        question, sql = _TEMPLATES[kind].fill(scene)
        if split_of(question, seed="database") != split:
            continue
        answers = _answers(scene.tables, sql) if kind in SELECTS else ["done"]
        if kind in SELECTS and not _fair(answers, single=kind in _ONE_ANSWER):
            continue
        if kind in WRITES and [list(table.rows) for table in scene.tables] == after(scene.tables, sql):
            continue
        tables = [table.plain() for table in scene.tables]
        question += "".join(f"\n{t.name}({', '.join(name for name, _ in t.columns)})" for t in scene.tables)
        return {"category": kind, "question": question, "tables": tables, "sql": sql, "answers": answers}


def after(tables: tuple[Table, ...], sql: str) -> list[list[tuple[Any, ...]]]:
    with closing(SqliteStore(tables)) as store:
        store.execute(sql)
        return [store.rows(table.name) or [] for table in tables]


def _answers(tables: tuple[Table, ...], sql: str) -> list[str]:
    with closing(SqliteStore(tables)) as store:
        return [str(cell) for row in store.query(sql) for cell in row]


def _fair(answers: list[str], *, single: bool) -> bool:
    return 1 <= len(answers) <= (1 if single else 8) and not {"None", "0"} & set(answers)


def _scene(rng: random.Random) -> Scene:
    parent, child = rng.choice(SUBJECTS)
    num_parents, num_children = rng.randint(3, 7), rng.randint(8, 18)
    parents = _table(parent, num_parents, rng=rng)
    children = _table(child, num_children, rng=rng, foreign=f"{parent.one}_id", num_parents=num_parents)
    return Scene(parent, child, (parents, children), rng)


def _table(side: Side, count: int, *, rng: random.Random, foreign: str = "", num_parents: int = 0) -> Table:
    names = rng.sample(side.rows_named, count)
    columns = [(f"{side.one}_id", "INTEGER"), ("name", "VARCHAR(80)"), *([(foreign, "INTEGER")] if foreign else [])]
    columns += [(side.text, "VARCHAR(80)"), *((number, "INTEGER") for number in side.numbers)]
    rows = []
    for i, name in enumerate(names, start=1):
        link = [rng.randint(1, num_parents)] if foreign else []
        text = rng.choice(side.values.split())
        rows.append((i, name, *link, text, *(rng.randint(*span) for span in side.numbers.values())))
    return Table(side.table, tuple(columns), tuple(rows))
