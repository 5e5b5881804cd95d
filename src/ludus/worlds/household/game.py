"""A game in play.

Promise: says word for word what textworld's own player says (a test compares them), at little cost.
The planner's library holds the state, lists what is possible, and plans; grammar and facts give the
text (telling.py). The library keeps everything in its globals, so every game in play has its own
copy, which is then kept for the next game.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Container
from typing import Any

from ludus.worlds.household.grammar import Each, Rule, Sentence, Slot, read_grammar, read_sentence
from ludus.worlds.household.telling import Bound, Facts, Teller, Thing
from ludus.worlds.household.translation import Translation, for_planning, translated

_ATOM = re.compile(r"(Negated)?Atom (\w+)\((.*)\)")
_INTRO = read_sentence("#intro#")


class Libraries:
    """Free copies of the planner's library. Each is 33 MB and can never be unloaded."""

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
    """`commands` are those possible now, sorted; `won`: the goal is reached."""

    def __init__(self, domain: str, grammar: str, problem: str) -> None:
        self._source = domain, problem
        self._rules = translated(domain, problem)
        self._facts: Facts = {}
        for predicate, *arguments in self._rules.facts:
            self._facts.setdefault(predicate, set()).add(tuple(arguments))
        self._teller = Teller(read_grammar(grammar), things_of(self._rules), self._facts)
        self._told: dict[str, str] = {}
        """Commands by operator, if they do not depend on what changes."""
        self._library = LIBRARIES.take()
        self._library.load_sas(self._rules.sas.encode())
        self._look()
        self.first = self._teller.tell(_INTRO, {})

    def act(self, command: str) -> str:
        operator = self._possible[command]
        action, bound = self._read(operator.name)
        self._apply(operator)
        self._look()
        return self._teller.tell(self._teller.grammar.feedback[action], bound)

    def plan(self) -> list[str]:
        self._library.load_sas_replan(for_planning(*self._source).encode())
        if not self._library.replan(False):
            return []
        operators = _operators(self._library.get_last_plan_length())
        self._library.get_last_plan(operators)
        return [self._command(operator.name) for operator in operators]

    def close(self) -> None:
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
        action, *things = operator.split()
        slots: list[Slot] = [(name, kind) for name, kind in self._rules.parameters[action]]
        return action, dict(zip(slots, things, strict=False))


def things_of(rules: Translation) -> dict[str, Thing]:
    """Things by id, named and numbered as alfworld does: `cabinet 3`."""
    ids = sorted({each for fact in rules.facts for each in fact[1:]})
    left = Counter(_class_of(each) for each in ids if "_bar_" in each)
    things = {}
    for each in ids:
        name, kind = _class_of(each), rules.types[each]
        called = f"{name} {left[name]}" if "_bar_" in each else each
        things[each] = Thing(each, called, frozenset([kind, *rules.above[kind]]))
        left[name] -= 1
    return things


def _fixed(sentence: Sentence, *, changing: Container[str]) -> bool:
    """Whether its text never changes: it has no rule and no query about what changes."""
    for symbol in sentence:
        given = symbol.given if isinstance(symbol, Each) else ()
        by_rule = isinstance(symbol.what if isinstance(symbol, Each) else symbol, Rule)
        if by_rule or any(predicate in changing for predicate, _ in given):
            return False
    return True


def _class_of(name: str) -> str:
    return name.partition("_bar_")[0] + ("basin" if "basin" in name else "")


def _operators(count: int) -> Any:
    from fast_downward import Operator

    return (Operator * count)()
