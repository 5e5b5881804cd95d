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

_FIRST = "Ada Ben Cleo Dan Eva Finn Gita Hugo Ines Jan Kira Leo Mona Nils Olga Paul Rosa Sam Tara Ugo Vera Wim Yara Zoe"
_LAST = "Abel Brandt Costa Dahl Engel Fuchs Grau Holm Ivers Jensen Keller Lund Moreau Novak Ortiz Petit Quist Roth Sato Tanner Vogel Weber"
_ADJECTIVES = (
    "Silent Golden Broken Hidden Northern Crimson Gentle Distant Wild Paper Copper Silver Winter Summer Midnight Velvet"
)
_NOUNS = "River Garden Tower Harbour Forest Mirror Lantern Bridge Orchard Meadow Island Compass Valley Window Feather Engine Market"
_PEOPLE = [f"{first} {last}" for first in _FIRST.split() for last in _LAST.split()]
_TABLES_OF_PEOPLE = {"authors", "players", "employees", "artists", "customers", "doctors", "teachers"}
_THINGS = [f"{adjective} {noun}" for adjective in _ADJECTIVES.split() for noun in _NOUNS.split()]


@dataclass(frozen=True)
class Side:
    """One of the two tables of a subject: a text column with few values, and columns of numbers."""

    table: str
    one: str
    text: str
    values: str
    numbers: dict[str, tuple[int, int]]

    @property
    def rows_named(self) -> list[str]:
        return _PEOPLE if self.table in _TABLES_OF_PEOPLE else _THINGS


_SIDES = (
    Side("authors", "author", "country", "France Japan Chile Kenya Norway", {"birth_year": (1900, 1990)}),
    Side("books", "book", "genre", "crime poetry history travel science", {"pages": (80, 900), "price": (5, 60)}),
    Side("teams", "team", "city", "Oslo Lima Porto Quito Turin", {"founded": (1880, 2000)}),
    Side("players", "player", "role", "keeper defender winger striker", {"goals": (0, 40), "age": (17, 39)}),
    Side("departments", "department", "site", "north south east west", {"budget": (100, 990)}),
    Side("employees", "employee", "job", "clerk engineer analyst driver", {"salary": (1800, 9000), "age": (20, 65)}),
    Side("artists", "artist", "style", "cubist realist abstract baroque", {"birth_year": (1600, 1980)}),
    Side("paintings", "painting", "medium", "oil ink pastel tempera", {"height_cm": (20, 300), "value": (10, 900)}),
    Side("customers", "customer", "town", "Delft Ghent Lyon Bern Graz", {"discount": (0, 30)}),
    Side("orders", "order", "category", "tools toys food garden", {"quantity": (1, 60), "amount": (5, 950)}),
    Side("bands", "band", "country", "Peru Iceland Ghana Latvia", {"formed": (1960, 2020)}),
    Side("albums", "album", "label", "Apex Nova Orbit Delta", {"tracks": (6, 24), "sales": (10, 990)}),
    Side("farms", "farm", "region", "hills coast plain valley", {"hectares": (5, 400)}),
    Side("harvests", "harvest", "crop", "wheat barley maize beans", {"tonnes": (1, 200), "day": (1, 365)}),
    Side("doctors", "doctor", "ward", "heart bones eyes children", {"experience": (1, 40)}),
    Side("visits", "visit", "reason", "check pain injury fever", {"minutes": (5, 90), "cost": (20, 400)}),
    Side("airlines", "airline", "hub", "Dublin Doha Seoul Cairo", {"fleet": (3, 250)}),
    Side("flights", "flight", "cabin", "economy business cargo", {"distance": (200, 9000), "seats": (10, 400)}),
    Side("teachers", "teacher", "subject", "maths music biology latin", {"years": (1, 40)}),
    Side("courses", "course", "level", "basic middle advanced", {"hours": (4, 90), "students": (3, 200)}),
)
SUBJECTS = tuple(zip(_SIDES[::2], _SIDES[1::2], strict=True))
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

    draws: tuple[str, ...]
    question: str
    sql: str

    def fill(self, scene: Scene) -> tuple[str, str]:
        names = scene.names()
        for draw in self.draws:
            names[draw] = _DRAWN[draw](scene, names)
        return self.question.format_map(names), self.sql.format_map(names)


def _read(text: str) -> dict[str, Template]:
    """Templates by name: a line `name: draws`, a line with the question, then the SQL."""
    found = {}
    for block in text.strip().split("\n\n"):
        head, question, *sql = block.splitlines()
        name, _, draws = head.partition(":")
        found[name] = Template(tuple(draws.split()), question, " ".join(sql))
    return found


SELECTS = _read("""
names_by_text: text
What are the names of the {c_table} whose {c_text} is {text}?
SELECT name FROM {c_table} WHERE {c_text} = '{text}'

number_of_one: n name
What is the {n} of the {c_one} named {name}?
SELECT {n} FROM {c_table} WHERE name = '{name}'

names_above: n number
Which {c_table} have {n} above {number}? Give their names.
SELECT name FROM {c_table} WHERE {n} > {number}

names_between: n range
Give the names of all {c_table} whose {n} is from {range[0]} to {range[1]}, both included.
SELECT name FROM {c_table} WHERE {n} BETWEEN {range[0]} AND {range[1]}

count_by_text: text
How many {c_table} have the {c_text} {text}?
SELECT COUNT(*) FROM {c_table} WHERE {c_text} = '{text}'

count_below: n number
How many {c_table} have {n} below {number}?
SELECT COUNT(*) FROM {c_table} WHERE {n} < {number}

sum_by_text: n text
What is the total {n} of the {c_table} whose {c_text} is {text}?
SELECT SUM({n}) FROM {c_table} WHERE {c_text} = '{text}'

average_by_text: n text
What is the average {n} of the {c_table} whose {c_text} is {text}? Round to two places.
SELECT ROUND(AVG({n}), 2) FROM {c_table} WHERE {c_text} = '{text}'

largest: n extreme
Which {c_one} has the {extreme[0]} {n}? Give the name.
SELECT name FROM {c_table} WHERE {n} = (SELECT {extreme[1]}({n}) FROM {c_table})

second: n
What is the name of the {c_one} with the second highest {n}?
SELECT name FROM {c_table} WHERE {n} = (SELECT MAX({n}) FROM {c_table} WHERE {n} < (SELECT MAX({n}) FROM {c_table}))

kinds: n number
Which different values of {c_text} occur among the {c_table} whose {n} is at least {number}?
SELECT DISTINCT {c_text} FROM {c_table} WHERE {n} >= {number}

commonest:
Which {c_text} is the most frequent among the {c_table}?
SELECT {c_text} FROM {c_table} GROUP BY {c_text} HAVING COUNT(*) =
(SELECT MAX(n) FROM (SELECT COUNT(*) AS n FROM {c_table} GROUP BY {c_text}) AS counts)

children_of: parent
What are the names of the {c_table} that belong to the {p_one} named {parent}?
SELECT c.name FROM {joined} WHERE p.name = '{parent}'

parent_of: name
To which {p_one} does the {c_one} named {name} belong? Give the name of the {p_one}.
SELECT p.name FROM {joined} WHERE c.name = '{name}'

sum_over_join: n parent_text
What is the total {n} of all {c_table} that belong to {p_table} whose {p_text} is {parent_text}?
SELECT SUM(c.{n}) FROM {joined} WHERE p.{p_text} = '{parent_text}'

count_over_join: parent_text text
How many {c_table} with the {c_text} {text} belong to {p_table} whose {p_text} is {parent_text}?
SELECT COUNT(*) FROM {joined} WHERE p.{p_text} = '{parent_text}' AND c.{c_text} = '{text}'

busiest:
Which {p_one} has the most {c_table}? Give the name.
SELECT p.name FROM {p_table} p JOIN {c_table} c ON c.{p_key} = p.{p_key} GROUP BY p.{p_key}, p.name
HAVING COUNT(*) = (SELECT MAX(n) FROM (SELECT COUNT(*) AS n FROM {c_table} GROUP BY {p_key}) AS counts)

childless: text
Which {p_table} have no {c_one} whose {c_text} is {text}? Give their names.
SELECT name FROM {p_table} WHERE {p_key} NOT IN (SELECT {p_key} FROM {c_table} WHERE {c_text} = '{text}')
""")
WRITES = _read("""
insert: text parent_key title key each
Add a new {c_one} named {title} with {c_key} {key}, {p_key} {parent_key}, {c_text} {text}, {numbers[0]} {each[0]} \
and {numbers[1]} {each[1]}.
INSERT INTO {c_table} ({c_key}, name, {p_key}, {c_text}, {numbers[0]}, {numbers[1]})
VALUES ({key}, '{title}', {parent_key}, '{text}', {each[0]}, {each[1]})

update_one: n name fresh
Change the {n} of the {c_one} named {name} to {fresh}.
UPDATE {c_table} SET {n} = {fresh} WHERE name = '{name}'

raise_some: n text by
Increase the {n} of every {c_one} whose {c_text} is {text} by {by}.
UPDATE {c_table} SET {n} = {n} + {by} WHERE {c_text} = '{text}'

update_over_join: n parent small
Set the {n} of all {c_table} that belong to the {p_one} named {parent} to {small}.
UPDATE {c_table} SET {n} = {small} WHERE {p_key} = (SELECT {p_key} FROM {p_table} WHERE name = '{parent}')

delete_some: n number
Delete all {c_table} whose {n} is below {number}.
DELETE FROM {c_table} WHERE {n} < {number}

delete_over_join: parent text
Delete the {c_table} with the {c_text} {text} that belong to the {p_one} named {parent}.
DELETE FROM {c_table} WHERE {c_text} = '{text}' AND
{p_key} IN (SELECT {p_key} FROM {p_table} WHERE name = '{parent}')
""")
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
