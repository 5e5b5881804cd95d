"""A generated catalogue: 3,000 products of 40 kinds, and goals drawn from them."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from ludus.worlds.files import own_data, word_lists
from ludus.worlds.webshop.catalogue import Catalogue, Goal, Product

NUM_PRODUCTS = 3_000
_DATA = own_data("webshop/departments.toml")
_WORDS = word_lists("webshop")


@cache
def generate_catalogue() -> Catalogue:
    rng = random.Random("webshop")
    asins: dict[str, None] = {}
    while len(asins) < NUM_PRODUCTS:
        asins["B0" + "".join(rng.choices("0123456789ABCDEFGHJKLMNPQRSTUVWXYZ", k=8))] = None
    return Catalogue({asin: _product(asin, rng) for asin in asins})


def draw_goal(rng: random.Random, *, split: str) -> dict[str, Any]:
    """One to three attributes and most options of a product, and a price limit that it meets."""
    catalogue = generate_catalogue()
    product = catalogue.products[rng.choice(catalogue.order)]
    attributes = tuple(rng.sample(product.attributes, rng.randint(1, 3)))
    options = {name: rng.choice(values) for name, values in product.options.items() if rng.random() < 0.8}
    upper = float(10 * (int(product.price) // 10 + rng.randint(1, 3)))
    wanted = "".join(f", {name}: {value}" for name, value in options.items())
    text = f"find me a {product.query} that is {' and '.join(attributes)}{wanted}, and price lower than {upper:.2f} dollars"
    goal = Goal(product.asin, text, attributes, tuple(options.values()), upper)
    return goal.plain(product.category[0])


def _product(asin: str, rng: random.Random) -> Product:
    department, sold = rng.choice(list(_DATA["departments"].items()))
    kind = rng.choice(sold["kinds"])
    own = tuple(rng.sample(sold["attributes"], rng.randint(3, 5)))
    brand = rng.choice(_WORDS["starts"]) + rng.choice(_WORDS["ends"])
    title = f"{brand} {rng.choice(_WORDS['adjectives'])} {kind}, {own[0]}, {own[1]}"
    return Product(
        asin=asin,
        title=title,
        category=(department, kind.split()[-1], kind),
        query=kind,
        price=rng.randint(*(100 * price for price in sold["prices"])) / 100,
        attributes=own,
        options={name: _some(values or _DATA["colors"], rng) for name, values in sold["options"].items()},
        description=f"The {kind} by {brand} for every day. It is {own[2]}.",
        features=own,
    )


def _some(known: list[str], rng: random.Random) -> tuple[str, ...]:
    picked = set(rng.sample(known, rng.randint(2, min(5, len(known)))))
    return tuple(value for value in known if value in picked)
