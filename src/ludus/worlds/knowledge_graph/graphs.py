"""Graphs that answer queries.

Promise: an answer is a sorted tuple, and a graph that cannot answer fails the session, not the
model. `SocietyGraph` is in this process. `SparqlGraph` queries an endpoint that holds Freebase; the
only model text in a query is names of relations, which must look like one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import httpx

from ludus.errors import EnvironmentFailed, border
from ludus.worlds.society import ATTRIBUTES, Society

Nodes = tuple[str, ...]
MAX_NODES = 5_000
_CHUNK = 200
_NAMESPACE = "http://rdf.freebase.com/ns/"
_RELATION = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)+")
_NOISE = ("type.", "common.", "freebase.", "kg.", "user.", "base.ontologies.")
"""Relations of Freebase's own bookkeeping."""
_DATES = ", ".join(
    f"<http://www.w3.org/2001/XMLSchema#{kind}>" for kind in ("dateTime", "date", "gYear", "gYearMonth", "gMonthDay")
)


class TooMany(Exception):
    """More nodes than a variable may hold."""


class SocietyGraph:
    def __init__(self, society: Society) -> None:
        self._society = society

    def kind(self, nodes: Nodes) -> str:
        return ", ".join(sorted({self._society.types[node] for node in nodes}))

    def relations(self, nodes: Nodes) -> Nodes:
        return _sorted(relation for node in nodes for relation in self._society.relations(node))

    def attributes(self, nodes: Nodes) -> Nodes:
        return _sorted(attribute for node in nodes for attribute in ATTRIBUTES.get(self._society.types[node], ()))

    def neighbours(self, nodes: Nodes, relation: str) -> Nodes:
        return _sorted(other for node in nodes for other in self._society.edges.get((node, relation), ()))

    def values(self, nodes: Nodes, attribute: str) -> dict[str, list[str]]:
        numbers = self._society.numbers
        return {node: [str(numbers[node][attribute])] for node in nodes if attribute in numbers[node]}


class SparqlGraph:
    def __init__(self, url: str, *, timeout_s: float = 30.0) -> None:
        self._url, self._timeout_s = url, timeout_s

    def kind(self, nodes: Nodes) -> str:
        return ""

    def relations(self, nodes: Nodes) -> Nodes:
        return self._names(nodes, "?x ?found ?y")

    def attributes(self, nodes: Nodes) -> Nodes:
        literal = f"FILTER(isLiteral(?y) && (isNumeric(?y) || datatype(?y) IN ({_DATES})))"
        return self._names(nodes, f"?x ?found ?y . {literal}")

    def neighbours(self, nodes: Nodes, relation: str) -> Nodes:
        if not _RELATION.fullmatch(relation):
            return ()
        found = self._ask(nodes, "?found", f"?x <{_NAMESPACE}{relation}> ?found")
        return _sorted(row["found"] for row in found)

    def values(self, nodes: Nodes, attribute: str) -> dict[str, list[str]]:
        values: dict[str, list[str]] = {}
        if _RELATION.fullmatch(attribute):
            for row in self._ask(nodes, "?x ?found", f"?x <{_NAMESPACE}{attribute}> ?found"):
                values.setdefault(row["x"], []).append(row["found"])
        return {node: sorted(found) for node, found in sorted(values.items())}

    def _names(self, nodes: Nodes, pattern: str) -> Nodes:
        own = f'FILTER(STRSTARTS(STR(?found), "{_NAMESPACE}"))'
        found = _sorted(row["found"] for row in self._ask(nodes, "?found", f"{pattern} . {own}"))
        return tuple(name for name in found if not name.startswith(_NOISE))

    def _ask(self, nodes: Nodes, select: str, pattern: str) -> list[dict[str, str]]:
        rows: list[dict[str, str]] = []
        for i in range(0, len(nodes), _CHUNK):
            some = " ".join(f"<{_NAMESPACE}{node}>" for node in nodes[i : i + _CHUNK] if _RELATION.fullmatch(node))
            query = f"SELECT DISTINCT {select} WHERE {{ VALUES ?x {{ {some} }} {pattern} }} LIMIT {MAX_NODES + 1}"
            rows += self._send(query)
            if len(rows) > MAX_NODES:
                raise TooMany
        return rows

    def _send(self, query: str) -> list[dict[str, str]]:
        with border(EnvironmentFailed, f"knowledge_graph: the endpoint {self._url} gave no answer"):
            headers = {"Accept": "application/sparql-results+json"}
            answer = httpx.post(self._url, data={"query": query}, headers=headers, timeout=self._timeout_s)
            answer.raise_for_status()
            return [_plain(row) for row in answer.json()["results"]["bindings"]]


Graph = SocietyGraph | SparqlGraph


def largest(values: dict[str, list[str]], *, sign: int) -> Nodes:
    """The nodes with the largest (`sign` 1) or smallest (-1) value. Dates are compared as text."""
    pick = max if sign > 0 else min
    ranked = {node: pick(map(_rank, found)) for node, found in values.items()}
    best = pick(ranked.values(), default=None)
    return _sorted(node for node, rank in ranked.items() if rank == best)


def _rank(text: str) -> tuple[int, float, str]:
    try:
        return 1, float(text), ""
    except ValueError:
        return 0, 0.0, text


def _plain(row: dict[str, Any]) -> dict[str, str]:
    return {name: cell["value"].removeprefix(_NAMESPACE) for name, cell in row.items()}


def _sorted(found: Iterable[str]) -> Nodes:
    return tuple(sorted(set(found)))


def chosen(nodes: Nodes, others: Sequence[str]) -> Nodes:
    return _sorted(set(nodes) & set(others))
