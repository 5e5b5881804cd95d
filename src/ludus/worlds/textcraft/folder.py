"""A book from a folder of recipe files, one JSON each, in the game's own format.

Shaped and shapeless crafting is read; smelting, stonecutting and so on are left out. So are recipes
that close a circle, for example by taking a block apart, and recipes that need a group without a
known member. Of alternative ingredients the first is taken.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from ludus.errors import ConfigError, border
from ludus.worlds.textcraft.book import Book, Recipe, make_book

_KINDS = ("minecraft:crafting_shaped", "minecraft:crafting_shapeless")
_WOODS = ("oak", "spruce", "birch", "jungle", "acacia", "dark oak", "crimson", "warped")
_MEMBERS = {
    "stone tool materials": ("cobblestone", "blackstone"),
    "stone crafting materials": ("cobblestone", "blackstone"),
    "soul fire base blocks": ("soul sand", "soul soil"),
    "wooden slabs": tuple(f"{wood} slab" for wood in _WOODS),
}
"""Groups whose members do not follow from their names."""


def read_folder(folder: Path) -> Book:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise ConfigError(f"recipes: no *.json files in {str(folder)!r}; expected one recipe in each file")
    read = [recipe for file in files if (recipe := _read(file))]
    tags = {group for _, groups in read for group in groups}
    items = sorted({name for recipe, _ in read for name in (recipe.makes, *(n for n, _ in recipe.needs))} - tags)
    groups = {group: members(group, items) for group in sorted(tags)}
    known = [recipe for recipe, needed in read if all(groups[group] for group in needed)]
    # unpacking (one block into nine things) goes last, so that the recipe that packs is kept
    known.sort(key=lambda recipe: len(recipe.needs) == 1 and recipe.needs[0][1] == 1 and recipe.count == 9)
    return make_book(known, {group: found for group, found in groups.items() if found})


def members(group: str, items: list[str]) -> tuple[str, ...]:
    """`oak logs` are oak log and stripped oak log; `planks` is everything that ends in planks."""
    if group in _MEMBERS:
        return _MEMBERS[group]
    single = group.removesuffix("s")
    exact = tuple(item for item in items if item in (single, f"stripped {single}"))
    return exact or tuple(item for item in items if item.endswith((f" {group}", f" {single}")))


def _read(file: Path) -> tuple[Recipe, frozenset[str]] | None:
    """The recipe of a file and the groups in it; None if it is not a crafting recipe."""
    with border(ConfigError, f"recipes: {str(file)!r} cannot be read as a recipe"):
        plain = json.loads(file.read_text(encoding="utf-8"))
        if plain["type"] not in _KINDS:
            return None
        parts = [part[0] if isinstance(part, list) else part for part in _parts(plain)]
        needs = Counter(_plain(part["tag"] if "tag" in part else part["item"]) for part in parts)
        makes = plain["result"]
        recipe = Recipe(_plain(makes["item"]), int(makes.get("count", 1)), tuple(sorted(needs.items())))
        return recipe, frozenset(_plain(part["tag"]) for part in parts if "tag" in part)


def _parts(plain: dict[str, Any]) -> list[Any]:
    if "ingredients" in plain:
        return list(plain["ingredients"])
    return [plain["key"][sign] for row in plain["pattern"] for sign in row if sign != " "]


def _plain(name: str) -> str:
    return name.removeprefix("minecraft:").replace("_", " ")
