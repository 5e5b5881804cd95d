"""A game being played. Promise: says word for word what textworld's own player of such games says (a test compares them), and costs little.

The planner's library holds the state, knows what is possible, and plans; grammar and facts give the words (telling.py). It keeps all
that in its own globals, so every game that is played has a copy of it, which is then kept for the next game.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Container
from typing import Any

from ludus.worlds.household.grammar import Each, Rule, Sentence, Slot, read_grammar, read_sentence
from ludus.worlds.household.telling import Bound, Facts, Teller, Thing
from ludus.worlds.household.translation import Translation, for_planning, translated

_ATOM = re.compile(r"(Negated)?Atom (\w+)\((.*)\)")
_INTRO = read_sentence("#intro#")


class Libraries:
    """Copies of the planner's library that no game uses now. To make one is to copy and load 33 MB, and none can be unloaded."""

    def __init__(self) -> None:
        self._free: list[Any] = []
        self._lock = threading.Lock()

    def take(self) -> Any:
        from fast_downward import load_lib

        with self._lock:
            return self._free.pop() if self._free else load_lib()

    def give_back(self, library: Any) -> None:
        with self._lock:
            self._free.append(library)


LIBRARIES = Libraries()


class Game:
    """`commands` are possible now, in order; `won` says whether the goal is reached."""

    def __init__(self, domain: str, grammar: str, problem: str) -> None:
        self._source = domain, problem
        self._rules = translated(domain, problem)
        self._facts: Facts = {}
        for predicate, *arguments in self._rules.facts:
            self._facts.setdefault(predicate, set()).add(tuple(arguments))
        self._teller = Teller(read_grammar(grammar), things_of(self._rules), self._facts)
        self._told: dict[str, str] = {}
        """Commands of operators, where they do not depend on what changes."""
        self._library = LIBRARIES.take()
        self._library.load_sas(self._rules.sas.encode())
        self._look()
        self.first = self._teller.tell(_INTRO, {})

    def act(self, command: str) -> str:
        """What is said to one of `commands`."""
        operator = self._possible[command]
        action, bound = self._read(operator.name)
        self._apply(operator)
        self._look()
        return self._teller.tell(self._teller.grammar.feedback[action], bound)

    def plan(self) -> list[str]:
        """Commands that win from here, or none."""
        self._library.load_sas_replan(for_planning(*self._source).encode())
        if not self._library.replan(False):
            return []
        operators = _operators(self._library.get_last_plan_length())
        self._library.get_last_plan(operators)
        return [self._command(operator.name) for operator in operators]

    def close(self) -> None:
        """Its library may be another game's from now on."""
        if self._library is not None:
            LIBRARIES.give_back(self._library)
            self._library = None

    def _look(self) -> None:
        operators = _operators(self._library.get_applicable_operators_count())
        self._library.get_applicable_operators(operators)
        self._possible: dict[str, Any] = {}
        for operator in operators:
            self._possible.setdefault(self._command(operator.name), operator)
        self.commands = sorted(self._possible)
        self.won = bool(self._library.check_goal())

    def _apply(self, operator: Any) -> None:
        from fast_downward import Atom

        effects = (Atom * operator.nb_effect_atoms)()
        self._library.apply_operator(operator.id, effects)
        for effect in effects:
            found = _ATOM.fullmatch(effect.name)
            assert found is not None
            now, before = (f"not_{found[2]}", found[2]) if found[1] else (found[2], f"not_{found[2]}")
            arguments = tuple(found[3].split(", ")) if found[3] else ()
            self._facts.setdefault(before, set()).discard(arguments)
            self._facts.setdefault(now, set()).add(arguments)

    def _command(self, operator: str) -> str:
        if operator in self._told:
            return self._told[operator]
        action, bound = self._read(operator)
        template = self._teller.grammar.templates[action]
        command = self._teller.tell(template, bound)
        if _fixed(template, changing=self._rules.changing):
            self._told[operator] = command
        return command

    def _read(self, operator: str) -> tuple[str, Bound]:
        """Its action, and what it is about."""
        action, *things = operator.split()
        slots: list[Slot] = [(name, kind) for name, kind in self._rules.parameters[action]]
        return action, dict(zip(slots, things, strict=False))


def things_of(rules: Translation) -> dict[str, Thing]:
    """`cabinet 3` in place of an id with coordinates, numbered as alfworld does it."""
    ids = sorted({id for fact in rules.facts for id in fact[1:]})
    left: dict[str, int] = {}
    for id in ids:
        if "_bar_" in id:
            left[_class_of(id)] = left.get(_class_of(id), 0) + 1
    things = {}
    for id in ids:
        name, kind = _class_of(id), rules.types[id]
        things[id] = Thing(id, f"{name} {left[name]}" if "_bar_" in id else id, frozenset([kind, *rules.above[kind]]))
        left[name] = left.get(name, 0) - 1
    return things


def _fixed(sentence: Sentence, *, changing: Container[str]) -> bool:
    """Whether its words stay the same: no rule in it, which is not looked into, and no query about what changes."""
    for symbol in sentence:
        given = symbol.given if isinstance(symbol, Each) else ()
        by_rule = isinstance(symbol.what if isinstance(symbol, Each) else symbol, Rule)
        if by_rule or any(predicate in changing for predicate, _ in given):
            return False
    return True


def _class_of(id: str) -> str:
    return id.partition("_bar_")[0] + ("basin" if "basin" in id else "")


def _operators(count: int) -> Any:
    from fast_downward import Operator

    return (Operator * count)()
