"""Questions of our own: two related tables of one of ten subjects, and a question or change made from a template.

Promise: the answer comes from running the gold SQL, so question and answer agree; no answer is empty, tied or nothing, and every change
changes something.
"""

from __future__ import annotations

import random
from collections.abc import Callable
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
_THINGS = [f"{adjective} {noun}" for adjective in _ADJECTIVES.split() for noun in _NOUNS.split()]


@dataclass(frozen=True)
class Side:
    """One of the two tables. `texts` are columns with few values, `numbers` are columns with a range."""

    table: str
    one: str
    texts: dict[str, str]
    numbers: dict[str, tuple[int, int]]
    people: bool = False


@dataclass(frozen=True)
class Subject:
    parent: Side
    child: Side


SUBJECTS = (
    Subject(
        Side(
            "authors",
            "author",
            {"country": "France Japan Chile Kenya Norway"},
            {"birth_year": (1900, 1990)},
            people=True,
        ),
        Side("books", "book", {"genre": "crime poetry history travel science"}, {"pages": (80, 900), "price": (5, 60)}),
    ),
    Subject(
        Side("teams", "team", {"city": "Oslo Lima Porto Quito Turin"}, {"founded": (1880, 2000)}),
        Side(
            "players",
            "player",
            {"role": "keeper defender winger striker"},
            {"goals": (0, 40), "age": (17, 39)},
            people=True,
        ),
    ),
    Subject(
        Side("departments", "department", {"site": "north south east west"}, {"budget": (100, 990)}),
        Side(
            "employees",
            "employee",
            {"job": "clerk engineer analyst driver"},
            {"salary": (1800, 9000), "age": (20, 65)},
            people=True,
        ),
    ),
    Subject(
        Side(
            "artists", "artist", {"style": "cubist realist abstract baroque"}, {"birth_year": (1600, 1980)}, people=True
        ),
        Side(
            "paintings", "painting", {"medium": "oil ink pastel tempera"}, {"height_cm": (20, 300), "value": (10, 900)}
        ),
    ),
    Subject(
        Side("customers", "customer", {"town": "Delft Ghent Lyon Bern Graz"}, {"discount": (0, 30)}, people=True),
        Side("orders", "order", {"category": "tools toys food garden"}, {"quantity": (1, 60), "amount": (5, 950)}),
    ),
    Subject(
        Side("bands", "band", {"country": "Peru Iceland Ghana Latvia"}, {"formed": (1960, 2020)}),
        Side("albums", "album", {"label": "Apex Nova Orbit Delta"}, {"tracks": (6, 24), "sales": (10, 990)}),
    ),
    Subject(
        Side("farms", "farm", {"region": "hills coast plain valley"}, {"hectares": (5, 400)}),
        Side("harvests", "harvest", {"crop": "wheat barley maize beans"}, {"tonnes": (1, 200), "day": (1, 365)}),
    ),
    Subject(
        Side("doctors", "doctor", {"ward": "heart bones eyes children"}, {"experience": (1, 40)}, people=True),
        Side("visits", "visit", {"reason": "check pain injury fever"}, {"minutes": (5, 90), "cost": (20, 400)}),
    ),
    Subject(
        Side("airlines", "airline", {"hub": "Dublin Doha Seoul Cairo"}, {"fleet": (3, 250)}),
        Side("flights", "flight", {"cabin": "economy business cargo"}, {"distance": (200, 9000), "seats": (10, 400)}),
    ),
    Subject(
        Side("teachers", "teacher", {"subject": "maths music biology latin"}, {"years": (1, 40)}, people=True),
        Side("courses", "course", {"level": "basic middle advanced"}, {"hours": (4, 90), "students": (3, 200)}),
    ),
)


@dataclass(frozen=True)
class Scene:
    """The drawn tables, and names and values for the templates to fill in. p_: parent, c_: child."""

    subject: Subject
    tables: tuple[Table, ...]
    rng: random.Random

    def __getattr__(self, name: str) -> Any:
        side = self.subject.parent if name.startswith("p_") else self.subject.child
        return {
            "table": side.table,
            "one": side.one,
            "key": f"{side.one}_id",
            "text": next(iter(side.texts)),
        }[name[2:]]

    def number(self) -> str:
        return self.rng.choice(list(self.subject.child.numbers))

    def value(self, column: str, *, parent: bool = False) -> Any:
        """A value that occurs in the column."""
        table = self.tables[0 if parent else 1]
        at = [name for name, _ in table.columns].index(column)
        return self.rng.choice(table.rows)[at]

    def fresh(self, column: str) -> int:
        return self.rng.randint(*self.subject.child.numbers[column])


Asked = tuple[str, str]
Template = Callable[[Scene], Asked]
SELECTS: dict[str, Template] = {}
WRITES: dict[str, Template] = {}


def _template(kinds: dict[str, Template]) -> Callable[[Template], Template]:
    def register(template: Template) -> Template:
        kinds[template.__name__.strip("_")] = template
        return template

    return register


@_template(SELECTS)
def _names_by_text(s: Scene) -> Asked:
    v = s.value(s.c_text)
    return (
        f"What are the names of the {s.c_table} whose {s.c_text} is {v}?",
        f"SELECT name FROM {s.c_table} WHERE {s.c_text} = '{v}'",
    )


@_template(SELECTS)
def _number_of_one(s: Scene) -> Asked:
    n, v = s.number(), s.value("name")
    return f"What is the {n} of the {s.c_one} named {v}?", f"SELECT {n} FROM {s.c_table} WHERE name = '{v}'"


@_template(SELECTS)
def _names_above(s: Scene) -> Asked:
    n = s.number()
    v = s.value(n)
    return f"Which {s.c_table} have {n} above {v}? Give their names.", f"SELECT name FROM {s.c_table} WHERE {n} > {v}"


@_template(SELECTS)
def _names_between(s: Scene) -> Asked:
    n = s.number()
    low, high = sorted((s.value(n), s.value(n)))
    return (
        f"Give the names of all {s.c_table} whose {n} is from {low} to {high}, both included.",
        f"SELECT name FROM {s.c_table} WHERE {n} BETWEEN {low} AND {high}",
    )


@_template(SELECTS)
def _count_by_text(s: Scene) -> Asked:
    v = s.value(s.c_text)
    return (
        f"How many {s.c_table} have the {s.c_text} {v}?",
        f"SELECT COUNT(*) FROM {s.c_table} WHERE {s.c_text} = '{v}'",
    )


@_template(SELECTS)
def _count_below(s: Scene) -> Asked:
    n = s.number()
    v = s.value(n)
    return f"How many {s.c_table} have {n} below {v}?", f"SELECT COUNT(*) FROM {s.c_table} WHERE {n} < {v}"


@_template(SELECTS)
def _sum_by_text(s: Scene) -> Asked:
    n, v = s.number(), s.value(s.c_text)
    return (
        f"What is the total {n} of the {s.c_table} whose {s.c_text} is {v}?",
        f"SELECT SUM({n}) FROM {s.c_table} WHERE {s.c_text} = '{v}'",
    )


@_template(SELECTS)
def _average_by_text(s: Scene) -> Asked:
    n, v = s.number(), s.value(s.c_text)
    return (
        f"What is the average {n} of the {s.c_table} whose {s.c_text} is {v}? Round to two places.",
        f"SELECT ROUND(AVG({n}), 2) FROM {s.c_table} WHERE {s.c_text} = '{v}'",
    )


@_template(SELECTS)
def _largest(s: Scene) -> Asked:
    n, how = s.number(), s.rng.choice((("highest", "MAX"), ("lowest", "MIN")))
    return (
        f"Which {s.c_one} has the {how[0]} {n}? Give the name.",
        f"SELECT name FROM {s.c_table} WHERE {n} = (SELECT {how[1]}({n}) FROM {s.c_table})",
    )


@_template(SELECTS)
def _second(s: Scene) -> Asked:
    n = s.number()
    return (
        f"What is the name of the {s.c_one} with the second highest {n}?",
        f"SELECT name FROM {s.c_table} WHERE {n} = (SELECT MAX({n}) FROM {s.c_table} WHERE {n} < (SELECT MAX({n}) FROM {s.c_table}))",
    )


@_template(SELECTS)
def _kinds(s: Scene) -> Asked:
    n = s.number()
    v = s.value(n)
    return (
        f"Which different values of {s.c_text} occur among the {s.c_table} whose {n} is at least {v}?",
        f"SELECT DISTINCT {s.c_text} FROM {s.c_table} WHERE {n} >= {v}",
    )


@_template(SELECTS)
def _commonest(s: Scene) -> Asked:
    counts = f"SELECT COUNT(*) AS n FROM {s.c_table} GROUP BY {s.c_text}"
    return (
        f"Which {s.c_text} is the most frequent among the {s.c_table}?",
        f"SELECT {s.c_text} FROM {s.c_table} GROUP BY {s.c_text} HAVING COUNT(*) = (SELECT MAX(n) FROM ({counts}) AS counts)",
    )


@_template(SELECTS)
def _children_of(s: Scene) -> Asked:
    v = s.value("name", parent=True)
    return (
        f"What are the names of the {s.c_table} that belong to the {s.p_one} named {v}?",
        f"SELECT c.name FROM {s.c_table} c JOIN {s.p_table} p ON c.{s.p_key} = p.{s.p_key} WHERE p.name = '{v}'",
    )


@_template(SELECTS)
def _parent_of(s: Scene) -> Asked:
    v = s.value("name")
    return (
        f"To which {s.p_one} does the {s.c_one} named {v} belong? Give the name of the {s.p_one}.",
        f"SELECT p.name FROM {s.c_table} c JOIN {s.p_table} p ON c.{s.p_key} = p.{s.p_key} WHERE c.name = '{v}'",
    )


@_template(SELECTS)
def _sum_over_join(s: Scene) -> Asked:
    n, v = s.number(), s.value(s.p_text, parent=True)
    return (
        f"What is the total {n} of all {s.c_table} that belong to {s.p_table} whose {s.p_text} is {v}?",
        f"SELECT SUM(c.{n}) FROM {s.c_table} c JOIN {s.p_table} p ON c.{s.p_key} = p.{s.p_key} WHERE p.{s.p_text} = '{v}'",
    )


@_template(SELECTS)
def _count_over_join(s: Scene) -> Asked:
    v, w = s.value(s.p_text, parent=True), s.value(s.c_text)
    return (
        f"How many {s.c_table} with the {s.c_text} {w} belong to {s.p_table} whose {s.p_text} is {v}?",
        f"SELECT COUNT(*) FROM {s.c_table} c JOIN {s.p_table} p ON c.{s.p_key} = p.{s.p_key} "
        f"WHERE p.{s.p_text} = '{v}' AND c.{s.c_text} = '{w}'",
    )


@_template(SELECTS)
def _busiest(s: Scene) -> Asked:
    counts = f"SELECT COUNT(*) AS n FROM {s.c_table} GROUP BY {s.p_key}"
    return (
        f"Which {s.p_one} has the most {s.c_table}? Give the name.",
        f"SELECT p.name FROM {s.p_table} p JOIN {s.c_table} c ON c.{s.p_key} = p.{s.p_key} GROUP BY p.{s.p_key}, p.name "
        f"HAVING COUNT(*) = (SELECT MAX(n) FROM ({counts}) AS counts)",
    )


@_template(SELECTS)
def _childless(s: Scene) -> Asked:
    v = s.value(s.c_text)
    return (
        f"Which {s.p_table} have no {s.c_one} whose {s.c_text} is {v}? Give their names.",
        f"SELECT name FROM {s.p_table} WHERE {s.p_key} NOT IN (SELECT {s.p_key} FROM {s.c_table} WHERE {s.c_text} = '{v}')",
    )


@_template(WRITES)
def _insert(s: Scene) -> Asked:
    (n, m), text, parent = s.subject.child.numbers, s.value(s.c_text), s.value(s.p_key, parent=True)
    name, key, a, b = _title(s.rng, people=s.subject.child.people), 100 + s.rng.randint(0, 99), s.fresh(n), s.fresh(m)
    return (
        f"Add a new {s.c_one} named {name} with {s.c_key} {key}, {s.p_key} {parent}, {s.c_text} {text}, {n} {a} and {m} {b}.",
        f"INSERT INTO {s.c_table} ({s.c_key}, name, {s.p_key}, {s.c_text}, {n}, {m}) "
        f"VALUES ({key}, '{name}', {parent}, '{text}', {a}, {b})",
    )


@_template(WRITES)
def _update_one(s: Scene) -> Asked:
    n, name = s.number(), s.value("name")
    v = s.fresh(n)
    return (
        f"Change the {n} of the {s.c_one} named {name} to {v}.",
        f"UPDATE {s.c_table} SET {n} = {v} WHERE name = '{name}'",
    )


@_template(WRITES)
def _raise_some(s: Scene) -> Asked:
    n, text, by = s.number(), s.value(s.c_text), s.rng.randint(1, 50)
    return (
        f"Increase the {n} of every {s.c_one} whose {s.c_text} is {text} by {by}.",
        f"UPDATE {s.c_table} SET {n} = {n} + {by} WHERE {s.c_text} = '{text}'",
    )


@_template(WRITES)
def _update_over_join(s: Scene) -> Asked:
    n, parent, v = s.number(), s.value("name", parent=True), s.rng.randint(1, 99)
    return (
        f"Set the {n} of all {s.c_table} that belong to the {s.p_one} named {parent} to {v}.",
        f"UPDATE {s.c_table} SET {n} = {v} WHERE {s.p_key} = (SELECT {s.p_key} FROM {s.p_table} WHERE name = '{parent}')",
    )


@_template(WRITES)
def _delete_some(s: Scene) -> Asked:
    n = s.number()
    v = s.value(n)
    return f"Delete all {s.c_table} whose {n} is below {v}.", f"DELETE FROM {s.c_table} WHERE {n} < {v}"


@_template(WRITES)
def _delete_over_join(s: Scene) -> Asked:
    parent, text = s.value("name", parent=True), s.value(s.c_text)
    return (
        f"Delete the {s.c_table} with the {s.c_text} {text} that belong to the {s.p_one} named {parent}.",
        f"DELETE FROM {s.c_table} WHERE {s.c_text} = '{text}' AND "
        f"{s.p_key} IN (SELECT {s.p_key} FROM {s.p_table} WHERE name = '{parent}')",
    )


_TEMPLATES = SELECTS | WRITES
_KINDS = (*SELECTS, *WRITES, *WRITES)
"""Of changes there are fewer templates."""
_ONE_ANSWER = {"largest", "second", "commonest", "busiest"}
"""Where a tie would leave open what is meant."""


def draw(rng: random.Random, *, split: str) -> dict[str, Any]:
    """A task: category, question, tables, gold SQL and, for a question, its answers. Its question is in no other split."""
    while True:
        kind = rng.choice(_KINDS)
        scene = _scene(rng)
        question, sql = _TEMPLATES[kind](scene)
        if split_of(question, seed="database") != split:
            continue
        answers = _answers(scene.tables, sql) if kind in SELECTS else ["done"]
        if kind in SELECTS and not _fair(answers, single=kind in _ONE_ANSWER):
            continue
        if kind in WRITES and not changes(scene.tables, sql):
            continue
        tables = [table.plain() for table in scene.tables]
        question += "".join(f"\n{t.name}({', '.join(name for name, _ in t.columns)})" for t in scene.tables)
        return {"category": kind, "question": question, "tables": tables, "sql": sql, "answers": answers}


def after(tables: tuple[Table, ...], sql: str) -> list[list[tuple[Any, ...]]]:
    """What the tables hold once the gold SQL has run."""
    store = SqliteStore(tables)
    try:
        store.execute(sql)
        return [store.rows(table.name) or [] for table in tables]
    finally:
        store.close()


def changes(tables: tuple[Table, ...], sql: str) -> bool:
    return [list(table.rows) for table in tables] != after(tables, sql)


def _answers(tables: tuple[Table, ...], sql: str) -> list[str]:
    store = SqliteStore(tables)
    try:
        return [str(cell) for row in store.query(sql) for cell in row]
    finally:
        store.close()


def _fair(answers: list[str], *, single: bool) -> bool:
    return 1 <= len(answers) <= (1 if single else 8) and not {"None", "0"} & set(answers)


def _scene(rng: random.Random) -> Scene:
    subject = rng.choice(SUBJECTS)
    num_parents, num_children = rng.randint(3, 7), rng.randint(8, 18)
    parents = _table(subject.parent, num_parents, rng=rng)
    children = _table(subject.child, num_children, rng=rng, foreign=f"{subject.parent.one}_id", num_parents=num_parents)
    return Scene(subject, (parents, children), rng)


def _table(side: Side, count: int, *, rng: random.Random, foreign: str = "", num_parents: int = 0) -> Table:
    names = rng.sample(_PEOPLE if side.people else _THINGS, count)
    columns = [(f"{side.one}_id", "INTEGER"), ("name", "VARCHAR(80)")]
    columns += [(foreign, "INTEGER")] if foreign else []
    columns += [(text, "VARCHAR(80)") for text in side.texts] + [(number, "INTEGER") for number in side.numbers]
    rows = []
    for i, name in enumerate(names, start=1):
        link = [rng.randint(1, num_parents)] if foreign else []
        texts = [rng.choice(values.split()) for values in side.texts.values()]
        rows.append((i, name, *link, *texts, *(rng.randint(*span) for span in side.numbers.values())))
    return Table(side.table, tuple(columns), tuple(rows))


def _title(rng: random.Random, *, people: bool) -> str:
    return rng.choice(_PEOPLE if people else _THINGS)
