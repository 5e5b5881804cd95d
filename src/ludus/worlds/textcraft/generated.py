"""A generated book of recipes: materials, and things of depth 1 to 4 made of them."""

from __future__ import annotations

import random

from ludus.worlds.files import word_lists
from ludus.worlds.textcraft.book import Book, Recipe, make_book

PER_DEPTH = 400
_WORDS = word_lists("textcraft")
_GROUPS = word_lists("textcraft_groups")


def generate_book() -> Book:
    rng = random.Random("textcraft")
    groups = {f"any {kind}": tuple(f"{sort} {kind}" for sort in sorts) for kind, sorts in _GROUPS.items()}
    materials = sorted({*_WORDS["materials"], *(member for members in groups.values() for member in members)})
    possible = [f"{style} {thing}" for style in _WORDS["styles"] for thing in _WORDS["things"]]
    names = rng.sample(possible, 4 * PER_DEPTH)
    levels = [materials, *(sorted(names[i * PER_DEPTH : (i + 1) * PER_DEPTH]) for i in range(4))]
    recipes = [
        _draw(name, level, levels=levels, groups=groups, rng=rng) for level in range(1, 5) for name in levels[level]
    ]
    return make_book(recipes, groups)


def _draw(
    name: str, level: int, *, levels: list[list[str]], groups: dict[str, tuple[str, ...]], rng: random.Random
) -> Recipe:
    """One thing of the level below, which sets the depth, and up to two other ingredients."""
    needs = {rng.choice(levels[level - 1]): rng.randint(1, 2 if level > 1 else 4)}
    for _ in range(rng.randint(0 if level > 1 else 1, 2)):
        below = rng.choice((levels[0], levels[0], sorted(groups), levels[rng.randrange(level)]))
        needs.setdefault(rng.choice(below), rng.randint(1, 3) if below is levels[0] else 1)
    return Recipe(name, rng.choice((1, 1, 2, 4)) if level < 3 else 1, tuple(sorted(needs.items())))
