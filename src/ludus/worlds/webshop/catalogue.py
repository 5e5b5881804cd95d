"""Products, goals and the index over them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from ludus.worlds.retrieval import Index


@dataclass(frozen=True)
class Product:
    """`category`: the path through the departments; `query`: the search it is filed under."""

    asin: str
    title: str
    category: tuple[str, ...]
    query: str
    price: float
    attributes: tuple[str, ...]
    options: dict[str, tuple[str, ...]]
    description: str
    features: tuple[str, ...]

    @cached_property
    def text(self) -> str:
        return " ".join((self.title, *self.features, self.description)).lower()


@dataclass(frozen=True)
class Goal:
    asin: str
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price_upper: float

    def plain(self, category: str) -> dict[str, Any]:
        lists = {"attributes": list(self.attributes), "options": list(self.options)}
        return {"category": category, "instruction": self.instruction} | asdict(self) | lists


@dataclass(frozen=True, eq=False)
class Catalogue:
    """`goals` come with the products; empty if goals are drawn."""

    products: dict[str, Product]
    goals: tuple[Goal, ...] = ()

    @cached_property
    def index(self) -> Index:
        return Index((product.title, _body(product)) for product in self.products.values())

    @cached_property
    def order(self) -> tuple[str, ...]:
        return tuple(self.products)

    def search(self, keywords: str, *, count: int) -> list[Product]:
        return [self.products[self.order[position]] for position in self.index.search(keywords, count=count)]


def _body(product: Product) -> str:
    values = (value for found in product.options.values() for value in found)
    return " ".join((*product.category, product.query, *product.attributes, *product.features, *values))
