"""TextCraft: craft the goal from materials, by recipes of which only some are needed.

The recipes are generated, or those in the folder `recipes`. `get` fetches materials; `craft` takes
the exact ingredients of one recipe, any member for a group. The prompt lists the recipes needed
among others. Crafting the goal pays 1 and ends the session. Metric: `progress`, the share crafted.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from ludus.environments import Reply
from ludus.worlds.drawing import split_of
from ludus.worlds.textcraft.book import Book, Plan, plan
from ludus.worlds.textcraft.folder import read_folder
from ludus.worlds.textcraft.generated import generate_book

_GET = re.compile(r"get (\d{1,3}) ([a-z' -]{1,60})")
_CRAFT = re.compile(r"craft (\d{1,3}) ([a-z' -]{1,60}?) using ([a-z0-9', -]{1,400})")
_PART = re.compile(r"(\d{1,3}) ([a-z' -]{1,60})")
_SAY = "say: get 2 NAME, craft 1 NAME using 2 NAME, 1 NAME, or inventory"


class Textcraft:
    """Craft the goal. Say one command a turn:
    get 2 NAME (only what cannot be crafted)
    craft 1 NAME using 2 NAME, 1 NAME (exactly as a recipe says; for a group, give one of its members)
    inventory"""

    capabilities = ("planning", "reasoning")

    def __init__(
        self,
        *,
        recipes: str = "",
        depths: list[Annotated[int, Field(ge=1, le=4)]] = [1, 2, 3, 4],  # noqa: B006 - read, never changed
        distractors: Annotated[int, Field(ge=0, le=30)] = 10,
        max_turns: Annotated[int, Field(ge=2)] = 30,
    ) -> None:
        """recipes: a folder of recipe files, empty for the generated book; depths: of the goals;
        distractors: recipes listed that are not needed."""
        self.recipes, self.depths, self.distractors, self.max_turns = recipes, depths, distractors, max_turns

    @cached_property
    def book(self) -> Book:
        return book_of(self.recipes)

    def tasks(self, split: str) -> list[dict[str, Any]]:
        """The hash of a goal's name decides its split."""
        goals = [goal for goal in self.book.recipes if split_of(goal, seed="textcraft") == split]
        return [task for goal in goals if (task := self._task(goal))]

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        self.goal, self.listed = task["goal"], task["recipes"]
        self.stock: Counter[str] = Counter()
        self.crafts = len(self._plan().recipes)
        return "\n".join(("recipes:", *self.listed, f"goal: {self.goal}"))

    def act(self, text: str) -> Reply:
        said = text.lower()
        if said == "inventory":
            listed = [f"{count} {name}" for name, count in sorted(self.stock.items()) if count]
            return Reply(", ".join(listed) or "nothing")
        if match := _GET.fullmatch(said):
            return self._get(int(match[1]), match[2])
        if match := _CRAFT.fullmatch(said):
            return self._craft(int(match[1]), match[2], given=match[3])
        return Reply(_SAY, invalid=True)

    def solve(self) -> str:
        return self._plan().commands[0]

    def random_action(self, rng: random.Random) -> str:
        line: str = rng.choice(self.listed)
        if rng.random() < 0.5:
            return line
        count, name = rng.choice(_PART.findall(line.partition(" using ")[2]))
        return f"get {count} {self.book.member(name) if name in self.book.groups else name}"

    def _get(self, count: int, name: str) -> Reply:
        if name in self.book.recipes:
            return Reply(f"{name} must be crafted", invalid=True)
        if name in self.book.groups:
            return Reply(f"{name} is a group: {', '.join(self.book.groups[name][:8])}", invalid=True)
        if name not in self.book.materials or not count:
            return Reply(f"no {name}" if count else "get at least 1", invalid=True)
        self.stock[name] += count
        return Reply(f"got {count} {name}")

    def _craft(self, count: int, name: str, *, given: str) -> Reply:
        needs: Counter[str] = Counter()
        for text in given.split(", "):
            if (part := _PART.fullmatch(text)) is None:
                return Reply(_SAY, invalid=True)
            needs[part[2]] += int(part[1])
        if name not in self.book.recipes:
            return Reply(f"no recipe for {name}", invalid=True)
        if not self.book.match(name, count=count, given=needs):
            return Reply(f"no recipe makes {count} {name} of exactly that", invalid=True)
        if missing := needs - self.stock:
            return Reply(f"missing {', '.join(f'{n} {item}' for item, n in sorted(missing.items()))}")
        self.stock = +(self.stock - needs)
        self.stock[name] += count
        if name == self.goal:
            return Reply(f"crafted {count} {name}. done", reward=1.0, done=True, metrics={"progress": 1.0})
        progress = max(0.0, 1 - len(self._plan().recipes) / self.crafts)
        return Reply(f"crafted {count} {name}", metrics={"progress": progress})

    def _plan(self) -> Plan:
        return plan(self.book, self.goal, have=self.stock)

    def _task(self, goal: str) -> dict[str, Any] | None:
        """None if the goal's depth is not wanted, or it takes more than max_turns."""
        depth = self.book.depth(goal)
        if depth not in self.depths:
            return None
        way = plan(self.book, goal, have={})
        if len(way.commands) > self.max_turns:
            return None
        rng = random.Random(f"textcraft {goal}")
        needed = list(dict.fromkeys(recipe.command for recipe in way.recipes))
        others = rng.sample(self.book.all, min(self.distractors + len(needed), len(self.book.all)))
        extra = [recipe.command for recipe in others if recipe.command not in needed and recipe.makes != goal]
        listed = [*needed, *extra[: self.distractors]]
        rng.shuffle(listed)
        return {"id": goal.replace(" ", "_"), "goal": goal, "category": f"depth {depth}", "recipes": listed}


@cache
def book_of(recipes: str) -> Book:
    return read_folder(Path(recipes).expanduser()) if recipes else generate_book()
