"""WebShop's reward for a purchase (Yao et al. 2022, arXiv 2207.01206), between 0 and 1:

    (attributes matched + options matched + price is right) / (attributes + options + 1) x type

Unlike in the original, all words of a title count except numbers and small words (not spaCy's
nouns), and there are no fuzzy ratios: an attribute matches if its words include those of one of the
product's or the reverse, an option if the words are the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ludus.worlds.webshop.catalogue import Goal, Product

_WORD = re.compile(r"[a-z0-9]+")
_SMALL_WORDS = "a an and are as at by for from in is it of on or per that the this to with your"


@dataclass(frozen=True)
class Judged:
    """Shares between 0 and 1; `total` is the reward."""

    total: float
    type: float
    attributes: float
    options: float
    price: float

    def metrics(self) -> dict[str, float]:
        parts = {f"reward_{name}": value for name, value in asdict(self).items() if name != "total"}
        return {"success": float(self.total >= 1.0)} | parts


def judge(bought: Product, *, chosen: Mapping[str, str], goal: Goal, target: Product) -> Judged:
    """chosen: the options clicked; target: the product that the goal was made from."""
    attributes = sum(_has(bought, attribute) for attribute in goal.attributes)
    options = sum(any(words(wanted) == words(value) for value in chosen.values()) for wanted in goal.options)
    price = float(bought.price <= goal.price_upper)
    kind = type_reward(bought, target)
    total = (attributes + options + price) / (len(goal.attributes) + len(goal.options) + 1) * kind
    return Judged(total, kind, _share(attributes, len(goal.attributes)), _share(options, len(goal.options)), price)


def type_reward(bought: Product, target: Product) -> float:
    wanted, got = _title(target), _title(bought)
    score = len(wanted & got) / len(wanted) if wanted else 0.2
    if score == 0.0:
        return 0.0
    if score < 0.1:
        return 0.1
    related = len(set(bought.category) & set(target.category)) >= 2
    return 1.0 if bought.query == target.query or related or score > 0.2 else 0.5


def words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))


def _has(product: Product, attribute: str) -> bool:
    wanted, known = words(attribute), [words(own) for own in product.attributes]
    near = any(own and wanted and (own <= wanted or wanted <= own) for own in known)
    return near or attribute.lower() in product.text


def _title(product: Product) -> frozenset[str]:
    return frozenset(word for word in words(product.title) if not word.isdigit()) - frozenset(_SMALL_WORDS.split())


def _share(count: int, of: int) -> float:
    return count / of if of else 1.0
