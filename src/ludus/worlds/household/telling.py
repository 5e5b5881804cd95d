"""The text of a game, from its grammar and its facts.

Promise: the same words as textworld's own player, for the same facts. Textworld parses every
sentence anew and copies its facts for every word: twenty milliseconds for a line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ludus.errors import EnvironmentFailed
from ludus.worlds.household.grammar import Each, Grammar, Query, Rule, Sentence, Slot

Bound = Mapping[Slot, str]
"""The things that a sentence is about, by id."""
Facts = dict[str, set[tuple[str, ...]]]
"""The things that each predicate is true of."""


@dataclass(frozen=True, slots=True)
class Thing:
    id: str
    name: str
    kinds: frozenset[str]
    """Its type and all supertypes."""
    definite: str = "the"
    indefinite: str = "a"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Teller:
    """Fills sentences in from `facts`, which change during the game."""

    grammar: Grammar
    things: Mapping[str, Thing]
    facts: Facts

    def tell(self, sentence: Sentence, bound: Bound) -> str:
        return "".join(part for symbol in sentence for part in self._parts(symbol, bound))

    def matches(self, query: Query, bound: Bound) -> Iterator[Bound]:
        """Every way to fill the query's open slots with distinct things, sorted by id."""
        if not query:
            yield bound
            return
        predicate, slots = query[0]
        for arguments in sorted(self.facts.get(predicate, ())):
            if (now := self._filled(slots, arguments, bound)) is not None:
                yield from self.matches(query[1:], now)

    def _filled(self, slots: tuple[Slot, ...], arguments: tuple[str, ...], bound: Bound) -> Bound | None:
        now = dict(bound)
        for slot, argument in zip(slots, arguments, strict=True):
            if slot in now:
                if now[slot] != argument:
                    return None
            elif argument in now.values() or slot[1] not in self.things[argument].kinds:
                return None
            now[slot] = argument
        return now

    def _parts(self, symbol: str | Rule | Each, bound: Bound) -> list[str]:
        if isinstance(symbol, str):
            return [symbol]
        if isinstance(symbol, Rule):
            return [self._by_rule(symbol.name, bound)]
        found = [self._each(symbol.what, match) for match in self.matches(symbol.given, bound)]
        return self._as_list(found, bound) if symbol.listed else found

    def _by_rule(self, name: str, bound: Bound) -> str:
        for condition, sentence in self.grammar.rules.get(name, ()):
            if any(True for _ in self.matches(condition, bound)):
                return self.tell(sentence, bound)
        raise EnvironmentFailed(f"the game's grammar has no sentence for #{name}#")

    def _each(self, what: Rule | ast.expr, bound: Bound) -> str:
        if isinstance(what, Rule):
            return self._by_rule(what.name, bound)
        return str(_value(what, {name: self.things[thing] for (name, _), thing in bound.items()}))

    def _as_list(self, found: list[str], bound: Bound) -> list[str]:
        if len(found) < 2:
            return found or [self._by_rule("list_empty", bound)]
        commas = self._by_rule("list_separator", bound).join(found[:-1])
        return [commas, self._by_rule("list_last_separator", bound), found[-1]]


def _value(node: ast.expr, things: Mapping[str, Thing]) -> str | Thing:
    """Walks `o.indefinite + ' ' + o.name` or `r.name or r.id`; it is never evaluated as code."""
    match node:
        case ast.Name(id=name) if name in things:
            return things[name]
        case ast.Attribute(value=ast.Name(id=name), attr="id" | "name" | "definite" | "indefinite" as attribute):
            return str(getattr(things[name], attribute))
        case ast.Constant(value=str(text)):
            return text
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return f"{_value(left, things)}{_value(right, things)}"
        case ast.BoolOp(op=ast.Or(), values=[one, other]):
            return _value(one, things) or _value(other, things)
    raise EnvironmentFailed(f"the game's grammar uses {ast.unparse(node)!r}, which is not supported")
