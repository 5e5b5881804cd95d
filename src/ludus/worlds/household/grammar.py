"""The language of ALFWorld's games.

Promise: reads what textworld's own parser reads, and runs nothing in it as code. A document names
actions, each with a template (the command) and a feedback (the reply), and rules:

    "inventory.feedback": [{"condition": "holdsany(a:agent)",
                            "rhs": "You are carrying: [{o.name | holds(a:agent, o:object)}]."},
                           {"rhs": "You are not carrying anything."}]

In a sentence `#rule#` stands for a rule's sentence, `{value}` for a value, `{value | query}` for
one value per match of a query, and `[{value | query}]` for a list of them (see telling.py).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from ludus.errors import EnvironmentFailed, border

_TOKEN = re.compile(r'"""(?P<block>.*?)"""|"(?P<text>[^"]*)"|(?P<word>[\w/-]+)|#[^\n]*', re.DOTALL)
_SYMBOL = re.compile(
    r"\[\{(?P<listed>[^{}\[\]]+)\}\]|\{(?P<each>[^{}\[\]]+)\}|#(?P<rule>[^#]+)#|(?P<text>[^;|\"<>\[\]#{}]+)"
)
_PREDICATE = re.compile(r"(\w+)\(([^()]*)\)")

Slot = tuple[str, str]
"""Name and type of a variable of a query."""
Query = tuple[tuple[str, tuple[Slot, ...]], ...]
"""Predicates that must all hold."""


@dataclass(frozen=True, slots=True)
class Rule:
    name: str


@dataclass(frozen=True, slots=True)
class Each:
    """`what`, once for each match of `given`, as a list if `listed`."""

    what: Rule | ast.expr
    given: Query
    listed: bool


Sentence = tuple[str | Rule | Each, ...]


@dataclass(frozen=True, slots=True)
class Grammar:
    templates: Mapping[str, Sentence]
    feedback: Mapping[str, Sentence]
    rules: Mapping[str, tuple[tuple[Query, Sentence], ...]]
    """Alternatives by name; the first whose condition holds is taken."""


@lru_cache(maxsize=16)
def read_grammar(document: str) -> Grammar:
    found: dict[str, dict[str, Sentence]] = {"template": {}, "feedback": {}}
    rules: dict[str, list[dict[str, str]]] = {}
    action = word = ""
    with border(EnvironmentFailed, "a household game's grammar cannot be read"):
        for token in _TOKEN.finditer(document):
            if token["word"]:
                action, word = (token["word"].lower() if word == "action" else action), token["word"]
            elif token["block"] is not None and word == "grammar":
                rules |= json.loads(re.sub(r"(?m)^\s*#.*$", "", token["block"]))
            elif token["text"] is not None and word in found:
                found[word][action] = read_sentence(token["text"])
        read = {
            name: tuple((read_query(each.get("condition", "")), read_sentence(each["rhs"])) for each in alternatives)
            for name, alternatives in rules.items()
        }
        return Grammar(found["template"], found["feedback"], read)


def read_sentence(text: str) -> Sentence:
    """Like textworld, skips leading spaces and stops at the first character that does not parse
    (ALFWorld's grammar has a bracket too many)."""
    symbols: list[str | Rule | Each] = []
    at = len(text) - len(text.lstrip())
    while symbol := _SYMBOL.match(text, at):
        at = symbol.end()
        if symbol["text"]:
            symbols.append(symbol["text"])
        elif symbol["rule"]:
            symbols.append(Rule(symbol["rule"]))
        else:
            value, _, given = (symbol["listed"] or symbol["each"]).partition("|")
            name = re.fullmatch(r"\s*#([^#]+)#\s*", value)
            what = Rule(name[1]) if name else ast.parse(value.strip(), mode="eval").body
            symbols.append(Each(what, read_query(given), listed=symbol["listed"] is not None))
    return tuple(symbols)


def read_query(text: str) -> Query:
    """Reads `holds(a:agent, o:object) & sliceable(o:object)`; an empty query always holds."""
    return tuple((name, tuple(_slot(slot) for slot in slots.split(","))) for name, slots in _PREDICATE.findall(text))


def _slot(text: str) -> Slot:
    name, _, kind = text.strip().partition(":")
    return name.strip(), kind.strip()
