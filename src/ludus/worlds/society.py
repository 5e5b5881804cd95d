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
from ludus.worlds.files import word_lists

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Relation:
    """`phrase` names the object in a question; `single`: a subject has at most one object."""

    subject: str
    object: str
    phrase: str
    inverse: str
    single: bool = False


RELATIONS = {
    "person.birthplace": Relation("person", "city", "the birthplace of {}", "city.natives", single=True),
    "city.natives": Relation("city", "person", "the people born in {}", "person.birthplace"),
    "person.university": Relation(
        "person", "university", "the university attended by {}", "university.alumni", single=True
    ),
    "university.alumni": Relation("university", "person", "the people who studied at {}", "person.university"),
    "person.teacher": Relation("person", "person", "the teacher of {}", "person.pupils", single=True),
    "person.pupils": Relation("person", "person", "the pupils of {}", "person.teacher"),
    "person.works": Relation("person", "work", "the works by {}", "work.creator"),
    "work.creator": Relation("work", "person", "the creator of {}", "person.works", single=True),
    "work.genre": Relation("work", "genre", "the genre of {}", "genre.works", single=True),
    "genre.works": Relation("genre", "work", "the works of the genre {}", "work.genre"),
    "work.award": Relation("work", "award", "the award won by {}", "award.winners", single=True),
    "award.winners": Relation("award", "work", "the works that won {}", "work.award"),
    "award.country": Relation("award", "country", "the country that gives {}", "country.awards", single=True),
    "country.awards": Relation("country", "award", "the awards given by {}", "award.country"),
    "city.country": Relation("city", "country", "the country of {}", "country.cities", single=True),
    "country.cities": Relation("country", "city", "the cities of {}", "city.country"),
    "university.city": Relation("university", "city", "the city where {} is", "city.universities", single=True),
    "city.universities": Relation("city", "university", "the universities in {}", "university.city"),
}
ATTRIBUTES = {
    "person": {"person.birth_year": (1850, 1985), "person.height_cm": (150, 200)},
    "city": {"city.population": (2_000, 900_000), "city.founded": (900, 1900)},
    "work": {"work.year": (1880, 2020), "work.copies": (100, 99_000)},
    "university": {"university.founded": (1200, 1990), "university.students": (500, 60_000)},
    "country": {"country.area": (900, 800_000)},
}
_SIZES = {"country": 6, "city": 30, "university": 20, "genre": 8, "award": 10, "person": 150, "work": 180}
_WORDS = word_lists("society")
_ENDINGS = {"country": "ia", "city": "", "university": " University", "genre": "ism", "award": " Prize"}


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
    for city in names["city"]:
        yield city, "city.country", rng.choice(names["country"])
    for university in names["university"]:
        yield university, "university.city", rng.choice(names["city"])
    for award in names["award"]:
        yield award, "award.country", rng.choice(names["country"])
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
    taken: dict[str, None] = {}
    found: dict[str, tuple[str, ...]] = {}
    for kind, size in _SIZES.items():
        own: list[str] = []
        while len(own) < size:
            name = _name(kind, rng)
            if name not in taken and split_of(name, seed="society") == split:
                taken[name] = None
                own.append(name)
        found[kind] = tuple(own)
    return found


def _name(kind: str, rng: random.Random) -> str:
    if kind == "person":
        return f"{_word(rng)} {_word(rng)}"
    if kind == "work":
        return f"The {rng.choice(_WORDS['works'])} of {_word(rng)}"
    return _word(rng) + _ENDINGS[kind]


def _word(rng: random.Random) -> str:
    return "".join(rng.choice(_WORDS[part]) for part in ("starts", "middles", "ends"))
