"""A book of recipes.

Promise: no item is needed to make itself, and every question has one answer in any process. An
ingredient is an item or a group of items, such as `planks`, any member of which will do. What no
recipe makes is a material, which can be got.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache


@dataclass(frozen=True)
class Recipe:
    makes: str
    count: int
    needs: tuple[tuple[str, int], ...]

    @cached_property
    def command(self) -> str:
        return self.command_with(self.needs)

    def command_with(self, given: Iterable[tuple[str, int]]) -> str:
        return f"craft {self.count} {self.makes} using {', '.join(f'{count} {name}' for name, count in given)}"


@dataclass(frozen=True, eq=False)
class Book:
    """`recipes` by the item that they make; `groups` by name, members in order."""

    recipes: Mapping[str, tuple[Recipe, ...]]
    groups: Mapping[str, tuple[str, ...]]

    @cached_property
    def materials(self) -> frozenset[str]:
        needed = {name for recipe in self.all for name, _ in recipe.needs}
        members = {member for group in self.groups.values() for member in group}
        return frozenset((needed | members) - set(self.groups) - set(self.recipes))

    @cached_property
    def all(self) -> tuple[Recipe, ...]:
        return tuple(recipe for name in sorted(self.recipes) for recipe in self.recipes[name])

    @cache  # noqa: B019 - books live as long as the process
    def depth(self, name: str) -> int:
        """0 for a material; else one more than the deepest ingredient of the first recipe."""
        if name in self.groups:
            return min(self.depth(item) for item in self.groups[name])
        if name not in self.recipes:
            return 0
        return 1 + max(self.depth(need) for need, _ in self.recipes[name][0].needs)

    def member(self, group: str, *, have: Mapping[str, int] | None = None) -> str:
        """The member that is in stock, else the one of the least depth."""
        return max(self.groups[group], key=lambda item: ((have or {}).get(item, 0), -self.depth(item)))

    def match(self, item: str, *, count: int, given: Mapping[str, int]) -> bool:
        """Whether a recipe makes `count` of `item` from exactly the items given."""
        return any(recipe.count == count and self._fits(recipe, given) for recipe in self.recipes.get(item, ()))

    def _fits(self, recipe: Recipe, given: Mapping[str, int]) -> bool:
        left = dict(given)  # items come before groups, which can use what is left
        for name, count in sorted(recipe.needs, key=lambda need: need[0] in self.groups):
            for item in self.groups.get(name, (name,)):
                taken = min(count, left.get(item, 0))
                count -= taken
                left[item] = left.get(item, 0) - taken
            if count:
                return False
        return not any(left.values())


def make_book(recipes: Iterable[Recipe], groups: Mapping[str, tuple[str, ...]]) -> Book:
    """Leaves out, in the order given, every recipe that would make an item need itself."""
    kept: dict[str, list[Recipe]] = {}
    uses: dict[str, set[str]] = {}
    for recipe in recipes:
        needs = {item for name, _ in recipe.needs for item in groups.get(name, (name,))}
        if not _reaches(uses, start=needs, goal=recipe.makes):
            uses.setdefault(recipe.makes, set()).update(needs)
            kept.setdefault(recipe.makes, []).append(recipe)
    return Book({name: tuple(found) for name, found in sorted(kept.items())}, dict(groups))


def _reaches(uses: Mapping[str, set[str]], *, start: set[str], goal: str) -> bool:
    seen, front = set(start), list(start)
    while front:
        new = uses.get(front.pop(), set()) - seen
        seen |= new
        front += new
    return goal in seen


@dataclass(frozen=True)
class Plan:
    commands: tuple[str, ...]
    recipes: tuple[Recipe, ...]


def plan(book: Book, goal: str, *, have: Mapping[str, int]) -> Plan:
    """How to make one `goal` from the stock, always by the first recipe."""
    return _planned(book, goal, tuple(sorted(have.items())))


@lru_cache(maxsize=1 << 14)
def _planned(book: Book, goal: str, have: tuple[tuple[str, int], ...]) -> Plan:
    stock, commands, used = Counter(dict(have)), list[str](), list[Recipe]()

    def need(item: str, count: int) -> None:
        """Makes sure of `count` of `item`, and takes them out of the stock."""
        missing = count - stock[item]
        if missing > 0 and item in book.materials:
            commands.append(f"get {missing} {item}")
            stock[item] += missing
        while stock[item] < count:
            make(book.recipes[item][0])
        stock[item] -= count

    def make(recipe: Recipe) -> None:
        given = [(book.member(name, have=stock) if name in book.groups else name, n) for name, n in recipe.needs]
        for name, n in sorted(given, key=lambda pair: -book.depth(pair[0])):
            need(name, n)
        commands.append(recipe.command_with(given))
        used.append(recipe)
        stock[recipe.makes] += recipe.count

    need(goal, 1)
    return Plan(tuple(commands), tuple(used))
