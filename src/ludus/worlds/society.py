"""A made-up society of people, places and works, for worlds that ask about one.

Promise: the same society in any process. Each split has its own, and no name is in two of them, so
nothing learnt about one helps with another. Relations come in pairs, one for each direction, as in
Freebase; attributes are numbers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from ludus.worlds.drawing import split_of
from ludus.worlds.files import own_data, word_lists

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Relation:
    """`phrase` names the object in a question; `single`: a subject has at most one object."""

    subject: str
    object: str
    phrase: str
    inverse: str
    single: bool = False


_WORDS = word_lists("society")
_DATA = own_data("society.toml")
_KINDS = _DATA["kinds"]
ATTRIBUTES = {kind: known["attributes"] for kind, known in _KINDS.items() if "attributes" in known}
"""The least and the largest value of each attribute, by kind and name."""
RELATIONS = {
    name: Relation(name.partition(".")[0], known["inverse"].partition(".")[0], **known)
    for name, known in _DATA["relations"].items()
}


@dataclass(frozen=True)
class Society:
    """`types` by name; `edges` by (name, relation); `numbers` by name, then attribute."""

    types: Mapping[str, str]
    edges: Mapping[tuple[str, str], tuple[str, ...]]
    numbers: Mapping[str, Mapping[str, int]]
    names: Mapping[str, tuple[str, ...]] = field(repr=False)

    def relations(self, name: str) -> list[str]:
        return [relation for relation in RELATIONS if (name, relation) in self.edges]


@cache
def society(split: str) -> Society:
    rng = random.Random(f"society {split}")
    names = _names(split, rng)
    types = {name: kind for kind, found in names.items() for name in found}
    pairs = dict.fromkeys(_pairs(names, rng))
    edges: dict[tuple[str, str], list[str]] = {}
    for one, relation, other in pairs:
        edges.setdefault((one, relation), []).append(other)
        edges.setdefault((other, RELATIONS[relation].inverse), []).append(one)
    numbers = {
        name: {attribute: rng.randint(*span) for attribute, span in ATTRIBUTES.get(kind, {}).items()}
        for name, kind in types.items()
    }
    return Society(types, {key: tuple(sorted(found)) for key, found in edges.items()}, numbers, names)


def _pairs(names: Mapping[str, tuple[str, ...]], rng: random.Random) -> Iterator[tuple[str, str, str]]:
    for relation in ("city.country", "university.city", "award.country"):
        for name in names[RELATIONS[relation].subject]:
            yield name, relation, rng.choice(names[RELATIONS[relation].object])
    for i, person in enumerate(names["person"]):
        yield person, "person.birthplace", rng.choice(names["city"])
        yield person, "person.university", rng.choice(names["university"])
        if i >= 10:  # the teacher comes earlier in the list, so nobody is their own teacher's teacher
            yield person, "person.teacher", rng.choice(names["person"][:i])
    for work in names["work"]:
        yield work, "work.creator", rng.choice(names["person"])
        yield work, "work.genre", rng.choice(names["genre"])
        if rng.random() < 0.5:
            yield work, "work.award", rng.choice(names["award"])


def _names(split: str, rng: random.Random) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for kind, known in _KINDS.items():
        own: dict[str, None] = {}
        while len(own) < known["size"]:
            name = _name(kind, rng)
            if split_of(name, seed="society") == split and not any(name in others for others in found.values()):
                own[name] = None
        found[kind] = tuple(own)
    return found


def _name(kind: str, rng: random.Random) -> str:
    if kind == "person":
        return f"{_word(rng)} {_word(rng)}"
    if kind == "work":
        return f"The {rng.choice(_WORDS['works'])} of {_word(rng)}"
    return f"{_word(rng)}{_KINDS[kind]['ending']}"


def _word(rng: random.Random) -> str:
    return "".join(rng.choice(_WORDS[part]) for part in ("starts", "middles", "ends"))
