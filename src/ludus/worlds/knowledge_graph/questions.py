"""Questions with the calls that answer them: generated ones about a society, and AgentBench's.

A call is [tool, arguments]; `#k` names the k-th variable made. Chains begin at a named entity.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ludus.errors import ConfigError, border
from ludus.worlds.knowledge_graph.graphs import Graph, SocietyGraph, chosen, largest
from ludus.worlds.society import ATTRIBUTES, RELATIONS, society

Call = tuple[str, dict[str, str]]
_MAX_ANSWERS = 12
_ARGUMENTS = {
    "get_relations": ("variable",),
    "get_neighbors": ("variable", "relation"),
    "intersection": ("variable1", "variable2"),
    "get_attributes": ("variable",),
    "argmax": ("variable", "attribute"),
    "argmin": ("variable", "attribute"),
    "count": ("variable",),
}


class Draft:
    """A question in the making: the calls so far and what they found."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.calls, self.found = graph, list[Call](), list[tuple[str, ...]]()
        self.entities: list[str] = []

    def chain(self, start: str, relations: Sequence[str]) -> tuple[str, str]:
        """Follows relations from an entity; returns the variable and its description."""
        self.entities.append(start)
        variable, words = start, start
        nodes: tuple[str, ...] = (start,)
        for relation in relations:
            nodes = self.graph.neighbours(nodes, relation)
            self.calls.append(("get_relations", {"variable": variable}))
            variable = self.make("get_neighbors", {"variable": variable, "relation": relation}, nodes)
            words = RELATIONS[relation].phrase.format(words)
        return variable, words

    def make(self, tool: str, arguments: dict[str, str], nodes: tuple[str, ...]) -> str:
        self.calls.append((tool, arguments))
        self.found.append(nodes)
        return f"#{len(self.found) - 1}"

    def nodes(self, variable: str) -> tuple[str, ...]:
        return self.found[int(variable[1:])]


def draw(rng: random.Random, *, split: str) -> dict[str, Any]:
    """A task of one to three hops, often with an intersection, a count or an extreme at the end."""
    graph = SocietyGraph(society(split))
    kind = rng.choice(("chain", "intersection", "count", "argmax", "argmin"))
    while True:
        draft = Draft(graph)
        question = _drawn(kind, draft, split=split, rng=rng)
        answer = draft.found[-1]
        if question and 1 <= len(answer) <= _MAX_ANSWERS and not set(answer) & set(draft.entities):
            return {
                "category": kind,
                "question": question,
                "entities": {name: name for name in sorted(set(draft.entities))},
                "calls": [[tool, arguments] for tool, arguments in draft.calls],
                "answer": list(answer),
                "graph": split,
            }


def _drawn(kind: str, draft: Draft, *, split: str, rng: random.Random) -> str:
    """Completes the draft and returns its question; empty if there is none."""
    hops = rng.randint(2, 3) if kind == "chain" else rng.randint(1, 2)
    start, relations = _way(hops, split=split, rng=rng)
    variable, words = draft.chain(start, relations)
    nodes = draft.nodes(variable)
    if kind == "chain":
        return f"Find {words}." if nodes else ""
    if kind == "intersection":
        return _intersected(draft, variable, words, split=split, rng=rng)
    if kind == "count":
        draft.make("count", {"variable": variable}, (str(len(nodes)),))
        return f"How many are {words}?" if len(nodes) > 1 else ""
    return _extreme(kind, draft, variable, words, target=RELATIONS[relations[-1]].object, rng=rng)


def _intersected(draft: Draft, variable: str, words: str, *, split: str, rng: random.Random) -> str:
    nodes = draft.nodes(variable)
    if len(nodes) < 2:
        return ""
    # walk back from one of the nodes, so that the two sets have it in common
    target = rng.choice(nodes)
    back = [r for r in society(split).relations(target) if RELATIONS[r].inverse != draft.calls[-1][1]["relation"]]
    if not back:
        return ""
    relation = rng.choice(back)
    start = rng.choice(society(split).edges[target, relation])
    second, other = draft.chain(start, (RELATIONS[relation].inverse,))
    if start in draft.entities[:-1] or set(draft.nodes(second)) >= set(nodes):
        return ""
    draft.make("intersection", {"variable1": variable, "variable2": second}, chosen(nodes, draft.nodes(second)))
    return f"Find what is both among {words} and among {other}."


def _extreme(kind: str, draft: Draft, variable: str, words: str, *, target: str, rng: random.Random) -> str:
    nodes = draft.nodes(variable)
    if len(nodes) < 2 or target not in ATTRIBUTES:
        return ""
    attribute = rng.choice(list(ATTRIBUTES[target]))
    draft.calls.append(("get_attributes", {"variable": variable}))
    best = largest(draft.graph.values(nodes, attribute), sign=1 if kind == "argmax" else -1)
    draft.make(kind, {"variable": variable, "attribute": attribute}, best)
    name = attribute.split(".")[1].replace("_", " ")
    return f"Of {words}, which has the {'highest' if kind == 'argmax' else 'lowest'} {name}?" if len(best) == 1 else ""


def _way(hops: int, *, split: str, rng: random.Random) -> tuple[str, list[str]]:
    """An entity and a chain of relations from it, none of which leads straight back."""
    people = society(split)
    start = node = rng.choice(list(people.types))
    relations: list[str] = []
    while len(relations) < hops:
        last = RELATIONS[relations[-1]].inverse if relations else ""
        possible = [relation for relation in people.relations(node) if relation != last]
        if not possible:
            break
        relations.append(rng.choice(possible))
        node = rng.choice(people.edges[node, relations[-1]])
    return (start, relations) if relations else _way(hops, split=split, rng=rng)


def read_items(path: Path) -> list[dict[str, Any]]:
    with border(ConfigError, f"items: {str(path)!r} is not a file of AgentBench's knowledge-graph items"):
        return [_task(item) for item in json.loads(path.read_text(encoding="utf-8"))]


def _task(item: dict[str, Any]) -> dict[str, Any]:
    calls = [_call(text) for text in item["actions"]]
    return {
        "id": item["qid"],
        "category": calls[-1][0],
        "question": item["question"],
        "entities": item["entities"],
        "calls": [[tool, arguments] for tool, arguments in calls],
        "answer": sorted({str(answer["answer_argument"]) for answer in item["answer"]}),
        "graph": "sparql",
    }


def _call(text: str) -> Call:
    match = re.fullmatch(r"\s*(\w+)\((.*)\)\s*", text)
    if match is None or match[1] not in _ARGUMENTS:
        raise ValueError(f"unknown action {text!r}")
    values = [part.strip() for part in match[2].split(",")]
    return match[1], dict(zip(_ARGUMENTS[match[1]], values, strict=True))
