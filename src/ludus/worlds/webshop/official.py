"""WebShop's own product files, under the names that its repository gives them.

    items_shuffle.json     [{asin, name, category, query, product_category, full_description,
                             small_description, pricing, customization_options: {name: [{value}]}}]
    items_ins_v2.json      {asin: {attributes, instruction, instruction_attributes}}
    items_human_ins.json   {asin: [{instruction, instruction_attributes, instruction_options}]}

The last file is optional. Unlike in the original, a price range counts as its lower end, the price
limit of a goal depends on its product alone, and a product belongs to one split. So results are not
comparable with published ones on the original's goal numbers.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ludus.errors import ConfigError, border
from ludus.worlds.files import read_json
from ludus.worlds.webshop.catalogue import Catalogue, Goal, Product

_PRICE = re.compile(r"\d[\d,]*(?:\.\d+)?")
_NO_PRICE = 100.0
"""The original's price of a product without one."""


def read_catalogue(folder: Path) -> Catalogue:
    """Reads the files above, or `items_shuffle_1000.json` and `items_ins_v2_1000.json`."""
    items = read_json(_first(folder, "items_shuffle.json", "items_shuffle_1000.json"), option="products")
    notes = read_json(_first(folder, "items_ins_v2.json", "items_ins_v2_1000.json"), option="products")
    written = folder / "items_human_ins.json"
    human = read_json(written, option="products") if written.is_file() else {}
    products: dict[str, Product] = {}
    for number, item in enumerate(items):
        with border(ConfigError, f"products: number {number} in {str(folder)!r} is no WebShop product"):
            product = _product(item, notes.get(item["asin"], {}))
        products.setdefault(product.asin, product)
    return Catalogue(products, tuple(_goals(products, notes=notes, human=human)))


def _product(item: dict[str, Any], note: dict[str, Any]) -> Product:
    bullets = item.get("small_description") or []
    return Product(
        asin=str(item["asin"]),
        title=str(item["name"]),
        category=tuple(part.strip() for part in str(item.get("product_category", "")).split("›")),
        query=str(item.get("query", "")).lower().strip(),
        price=_price(str(item.get("pricing") or "")),
        attributes=tuple(note.get("attributes", ())),
        options={
            str(name).lower(): tuple(dict.fromkeys(str(value["value"]).strip().lower() for value in values))
            for name, values in (item.get("customization_options") or {}).items()
            if values
        },
        description=str(item.get("full_description") or ""),
        features=tuple(str(line) for line in (bullets if isinstance(bullets, list) else [bullets])),
    )


def _goals(products: dict[str, Product], *, notes: dict[str, Any], human: dict[str, Any]) -> Iterator[Goal]:
    """Goals that people wrote, else those generated from the products' attributes."""
    for asin, product in products.items():
        rng = random.Random(f"webshop {asin}")
        written = human.get(asin, []) if human else [notes[asin]] if asin in notes else []
        for note in written:
            attributes = tuple(note.get("instruction_attributes") or ())
            if not attributes or not note.get("instruction"):
                continue
            options = _options(product, note, rng)
            upper = float(10 * (int(product.price) // 10 + rng.randint(1, 4)))
            chosen = "" if "instruction_options" in note else "".join(f", {option}" for option in options)
            text = f"{str(note['instruction']).strip(' .')}{chosen}, and price lower than {upper:.2f} dollars"
            yield Goal(asin, text, attributes, options, upper)


def _options(product: Product, note: dict[str, Any], rng: random.Random) -> tuple[str, ...]:
    if "instruction_options" in note:
        found = note["instruction_options"]
        return tuple(str(value).lower() for value in (found.values() if isinstance(found, dict) else found))
    return tuple(rng.choice(values) for values in product.options.values())


def _price(text: str) -> float:
    found = _PRICE.search(text)
    return float(found[0].replace(",", "")) if found else _NO_PRICE


def _first(folder: Path, *names: str) -> Path:
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise ConfigError(f"products: no {' or '.join(names)} in {str(folder)!r}; expected the folder with WebShop's files")
