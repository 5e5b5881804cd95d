"""Questions over a knowledge graph, some hops away.

Tools make variables `#0`, `#1`, ...; the answer is one of them, given as text. Answering ends the
session: 1 if the variable holds exactly the right things, else 0; the metric `f1` tells how near it
was. The graph is a generated society in this process. With `sparql` and `items` the test split is
AgentBench's questions over Freebase at that endpoint.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from ludus.environments import Reply, tool
from ludus.types import ToolCall
from ludus.worlds.drawing import draw_split
from ludus.worlds.knowledge_graph.graphs import Graph, Nodes, SocietyGraph, SparqlGraph, TooMany, chosen, largest
from ludus.worlds.knowledge_graph.questions import draw, read_items
from ludus.worlds.society import society

_ANSWER = re.compile(r"fin(?:al|d) answer:\s*#(\d{1,4})\b", re.IGNORECASE)
_LIST_CHARS = 2_000


class Unknown(Exception):
    """A variable that holds no nodes; the message is shown to the model."""


class KnowledgeGraph:
    """Answer the question with the graph. get_neighbors, intersection, argmax, argmin and count make variables #0, #1, ... in turn;
    a tool's variable is one of those or an entity of the question. When a variable holds the answer, say without a call:
    Final Answer: #k"""

    capabilities = ("planning", "reasoning", "tool use")

    def __init__(self, *, sparql: str = "", items: str = "", max_turns: Annotated[int, Field(ge=3)] = 15) -> None:
        """sparql: URL of a Freebase endpoint; items: AgentBench's std.json, as test tasks."""
        if bool(sparql) != bool(items):
            raise ValueError("sparql and items belong together: the items are questions about the endpoint's data")
        self.sparql, self.items, self.max_turns = sparql, items, max_turns

    def tasks(self, split: str) -> list[dict[str, Any]]:
        if self.items and split == "test":
            return read_items(Path(self.items).expanduser())
        return draw_split(draw, split=split, seed="knowledge_graph")

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        self.task, self.entities = task, task["entities"]
        own: str = task["graph"]
        self.graph: Graph = SparqlGraph(self.sparql) if own == "sparql" else SocietyGraph(society(own))
        self.variables: list[Nodes] = []
        self.numbers: set[int] = set()
        self.played = 0
        return f"{task['question']}\nentities: {', '.join(self.entities)}"

    @tool
    def get_relations(self, variable: str) -> Reply:
        """List the relations that lead on from a variable or entity."""
        return self._listed(variable, "relations")

    @tool
    def get_neighbors(self, variable: str, relation: str) -> Reply:
        """Follow a relation; makes a variable."""
        neighbours = partial(self.graph.neighbours, relation=relation)
        return self._made(neighbours, variable, nothing=f"nothing by {relation[:60]!r}")

    @tool
    def intersection(self, variable1: str, variable2: str) -> Reply:
        """What is in both; makes a variable."""
        return self._made(chosen, variable1, variable2, nothing="nothing in both")

    @tool
    def get_attributes(self, variable: str) -> Reply:
        """List the attributes by which the things in a variable can be ranked."""
        return self._listed(variable, "attributes")

    @tool
    def argmax(self, variable: str, attribute: str) -> Reply:
        """The things with the highest value; makes a variable."""
        return self._ranked(variable, attribute, sign=1)

    @tool
    def argmin(self, variable: str, attribute: str) -> Reply:
        """The things with the lowest value; makes a variable."""
        return self._ranked(variable, attribute, sign=-1)

    @tool
    def count(self, variable: str) -> Reply:
        """How many things there are; makes a variable."""
        return self._made(lambda nodes: (str(len(nodes)),), variable, nothing="", number=True)

    def say(self, text: str) -> Reply:
        match = _ANSWER.search(text[-1_000:])
        if match is None:
            return Reply("call a tool, or say: Final Answer: #k", invalid=True)
        if int(match[1]) >= len(self.variables):
            return Reply(f"no variable #{match[1]}", done=True, invalid=True)
        said, right = set(self.variables[int(match[1])]), set(self.task["answer"])
        f1 = 2 * len(said & right) / (len(said) + len(right))
        return Reply("answered", reward=float(said == right), done=True, metrics={"f1": f1})

    def solve(self) -> ToolCall | str:
        calls = self.task["calls"]
        if self.played >= len(calls):
            return f"Final Answer: #{len(self.variables) - 1}"
        name, arguments = calls[self.played]
        self.played += 1
        return ToolCall(name, arguments)

    def random_action(self, rng: random.Random) -> ToolCall | str:
        if self.variables and rng.random() < 0.2:
            return f"Final Answer: #{rng.randrange(len(self.variables))}"
        known = [*self.entities, *(f"#{k}" for k in range(len(self.variables)) if k not in self.numbers)]
        variable = rng.choice(known)
        nodes = self._nodes(variable)
        attributes = self.graph.attributes(nodes)
        if attributes and rng.random() < 0.3:
            name = rng.choice(("argmax", "argmin"))
            return ToolCall(name, {"variable": variable, "attribute": rng.choice(attributes)})
        if rng.random() < 0.2:
            return ToolCall("count", {"variable": variable})
        relations = self.graph.relations(nodes) or ("none.known",)
        return ToolCall("get_neighbors", {"variable": variable, "relation": rng.choice(relations)})

    def _nodes(self, variable: str) -> Nodes:
        """The nodes that a variable or an entity stands for; raises Unknown."""
        name = variable.strip()
        if name in self.entities or name in self.entities.values():
            return (self.entities.get(name, name),)
        number = re.fullmatch(r"#(\d{1,4})", name)
        if number is None or int(number[1]) >= len(self.variables):
            known = [*self.entities, *(f"#{k}" for k in range(len(self.variables)))]
            raise Unknown(f"no variable or entity {name[:60]!r}; known: {', '.join(known)[:300]}")
        if int(number[1]) in self.numbers:
            raise Unknown(f"{name} is a number")
        return self.variables[int(number[1])]

    def _listed(self, variable: str, what: str) -> Reply:
        try:
            text = ", ".join(getattr(self.graph, what)(self._nodes(variable))) or f"no {what}"
        except Unknown as error:
            return Reply(str(error), invalid=True)
        except TooMany:
            return Reply("too many to list", invalid=True)
        return Reply(text if len(text) <= _LIST_CHARS else text[:_LIST_CHARS] + " [TRUNCATED]")

    def _ranked(self, variable: str, attribute: str, *, sign: int) -> Reply:
        nothing = f"nothing has {attribute[:60]!r}"
        return self._made(
            lambda nodes: largest(self.graph.values(nodes, attribute), sign=sign), variable, nothing=nothing
        )

    def _made(self, make: Callable[..., Nodes], *variables: str, nothing: str, number: bool = False) -> Reply:
        try:
            nodes = make(*map(self._nodes, variables))
        except Unknown as error:
            return Reply(str(error), invalid=True)
        except TooMany:
            return Reply("too many to hold in a variable", invalid=True)
        if not nodes:
            return Reply(nothing, invalid=True)
        self.variables.append(nodes)
        made = len(self.variables) - 1
        if number:
            self.numbers.add(made)
            return Reply(f"#{made}: a number")
        kind = self.graph.kind(nodes)
        return Reply(f"#{made}" + (f": instances of {kind}" if kind else ""))
