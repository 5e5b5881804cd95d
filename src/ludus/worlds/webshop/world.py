"""A shop: search, look, choose options, buy what the instruction asks for.

Pages are texts that end with what can be clicked. Buying ends the session with WebShop's reward,
between 0 and 1; metrics give its parts for type, attributes, options and price. The catalogue is
generated, or WebShop's own files in a folder.
"""

from __future__ import annotations

import random
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec
from pydantic import Field

from ludus.environments import Reply, tool
from ludus.errors import nearest
from ludus.types import ToolCall
from ludus.worlds.drawing import draw_split, split_of
from ludus.worlds.webshop.catalogue import Catalogue, Goal, Product
from ludus.worlds.webshop.generated import draw_goal, generate_catalogue
from ludus.worlds.webshop.official import read_catalogue
from ludus.worlds.webshop.reward import judge, words

_PER_PAGE = 10
_MAX_RESULTS = 50
_MAX_TEXT_CHARS = 1_500
BACK, NEXT, PREVIOUS, BUY = "back to search", "next >", "< prev", "buy now"


class Webshop:
    """Buy what the instruction asks for: the right kind of thing, with the attributes and options named, within the price. Search,
    click a product's number, click its options, then click 'buy now': that ends the session."""

    capabilities = ("planning", "tool use", "reasoning")

    def __init__(self, *, products: str = "", max_turns: Annotated[int, Field(ge=3)] = 20) -> None:
        """products: a folder with WebShop's own files, empty for the generated catalogue."""
        self.products, self.max_turns = products, max_turns

    @cached_property
    def shop(self) -> Catalogue:
        return catalogue_of(self.products)

    def tasks(self, split: str) -> list[dict[str, Any]]:
        """A product and the goals made from it belong to one split."""
        if self.products:
            own = [goal for goal in self.shop.goals if split_of(goal.asin, seed="webshop") == split]
            return [goal.plain(self.shop.products[goal.asin].category[0]) for goal in own]
        return draw_split(draw_goal, split=split, seed="webshop", apart="asin")

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        self.goal = msgspec.convert(task, Goal)
        self.found: list[Product] = []
        self.page = 0
        self.product: Product | None = None
        self.chosen: dict[str, str] = {}
        self.reading = ""
        return f"{self.goal.instruction}\n{self._look()}"

    @tool
    def search_action(self, keywords: str) -> Reply:
        """Search the shop. Only on the search page.

        keywords: words of what you look for"""
        if self.found:
            return Reply(f"no search bar here: click '{BACK}' first\n{self._look()}", invalid=True)
        self.found, self.page = self.shop.search(keywords, count=_MAX_RESULTS), 0
        return Reply(self._look() if self.found else f"nothing found\n{self._look()}")

    @tool
    def click_action(self, value: str) -> Reply:
        """Click something on the page.

        value: as it stands in the list"""
        wanted = value.strip().strip("[]").lower()
        known = {name.lower(): name for name in self._clickable()}
        if wanted not in known:
            near = nearest(value[:40], known.values())
            return Reply(f"nothing to click as {value[:40]!r}.{near}\n{self._look()}", invalid=True)
        if wanted == BUY:
            return self._buy()
        self._click(wanted)
        return Reply(self._look())

    def solve(self) -> ToolCall:
        target = self.shop.products[self.goal.asin]
        if not self.found:
            return ToolCall("search_action", {"keywords": target.title})
        return ToolCall("click_action", {"value": self._best_click(target)})

    def random_action(self, rng: random.Random) -> ToolCall:
        clickable = self._clickable()
        if not clickable:
            return ToolCall("search_action", {"keywords": " ".join(rng.sample(self.goal.instruction.split(), 3))})
        return ToolCall("click_action", {"value": rng.choice(clickable)})

    def _look(self) -> str:
        choices = f"click: {' | '.join(self._clickable())}" if self.found else "search"
        return f"{self._text()}\nyou can {choices}"

    def _text(self) -> str:
        if not self.found:
            return "search page"
        if self.product is None:
            pages = -(-len(self.found) // _PER_PAGE)
            lines = [f"{p.asin}: {p.title[:200]}, ${p.price:.2f}" for p in self._shown()]
            return "\n".join((f"page {self.page + 1} of {pages}", *lines))
        if self.reading:
            text = self.product.description if self.reading == "description" else "; ".join(self.product.features)
            return f"{self.reading}: {text[:_MAX_TEXT_CHARS] or 'none'}"
        options = [
            f"{name}: {', '.join(values)}" + (f" (chosen: {self.chosen[name]})" if name in self.chosen else "")
            for name, values in self.product.options.items()
        ]
        return "\n".join((self.product.title, f"price ${self.product.price:.2f}", *options))

    def _clickable(self) -> list[str]:
        if not self.found:
            return []
        if self.product is None:
            more = [NEXT] if (self.page + 1) * _PER_PAGE < len(self.found) else []
            less = [PREVIOUS] if self.page else []
            return [*(p.asin for p in self._shown()), *more, *less, BACK]
        if self.reading:
            return [PREVIOUS, BACK]
        values = [value for found in self.product.options.values() for value in found]
        return [*dict.fromkeys(values), "description", "features", BUY, PREVIOUS, BACK]

    def _shown(self) -> list[Product]:
        return self.found[self.page * _PER_PAGE : (self.page + 1) * _PER_PAGE]

    def _click(self, wanted: str) -> None:
        if wanted == BACK:
            self.found, self.product, self.chosen, self.reading = [], None, {}, ""
        elif self.product is None and wanted in (NEXT, PREVIOUS):
            self.page += 1 if wanted == NEXT else -1
        elif self.product is None:
            self.product = next(product for product in self._shown() if product.asin.lower() == wanted)
        elif wanted == PREVIOUS and self.reading:
            self.reading = ""
        elif wanted == PREVIOUS:
            self.product, self.chosen = None, {}
        elif wanted in ("description", "features"):
            self.reading = wanted
        else:
            options = [(name, value) for name, values in self.product.options.items() for value in values]
            self.chosen |= {name: value for name, value in options if value.lower() == wanted}

    def _buy(self) -> Reply:
        assert self.product is not None
        target = self.shop.products[self.goal.asin]
        judged = judge(self.product, chosen=self.chosen, goal=self.goal, target=target)
        return Reply("bought", reward=judged.total, done=True, metrics=judged.metrics())

    def _best_click(self, target: Product) -> str:
        if self.product is None:
            if target in self._shown():
                return target.asin
            return NEXT if target in self.found[(self.page + 1) * _PER_PAGE :] else PREVIOUS if self.page else BACK
        if self.reading or self.product is not target:
            return PREVIOUS
        for wanted in self.goal.options:
            if not any(words(wanted) == words(value) for value in self.chosen.values()):
                known = [value for values in target.options.values() for value in values]
                return next((value for value in known if words(wanted) == words(value)), BUY)
        return BUY


@cache
def catalogue_of(products: str) -> Catalogue:
    return read_catalogue(Path(products).expanduser()) if products else generate_catalogue()
