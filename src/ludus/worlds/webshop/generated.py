"""A generated catalogue: 3,000 products of 40 kinds, and goals drawn from them."""

from __future__ import annotations

import random
from typing import Any

from ludus.worlds.webshop.catalogue import Catalogue, Goal, Product

NUM_PRODUCTS = 3_000
_CLOTHES = "machine washable,slim fit,long sleeve,quick drying,wrinkle free,tummy control,moisture wicking,high waist,elastic closure"
_HOME = "easy to clean,space saving,solid wood,easy to assemble,stain resistant,non slip,height adjustable,dishwasher safe,fade resistant"
_TECH = "fast charging,wireless,water resistant,noise cancelling,long lasting battery,high resolution,plug and play,hands free,dust proof"
_FOOD = "gluten free,sugar free,non gmo,low sodium,plant based,artificial flavour free,high protein,dairy free,keto friendly"
_BODY = "cruelty free,fragrance free,alcohol free,sulfate free,dermatologist tested,paraben free,for sensitive skin,vitamin rich,vegan"
_DEPARTMENTS: dict[str, tuple[str, str, dict[str, str], tuple[int, int]]] = {
    # department: kinds, attributes, options, prices
    "clothing": (
        "running shoes,rain jacket,wool sweater,summer dress,cargo trousers,leather belt,winter gloves,linen shirt",
        _CLOTHES,
        {"color": "", "size": "x-small,small,medium,large,x-large,xx-large"},
        (12, 140),
    ),
    "home": (
        "coffee table,floor lamp,throw pillow,shower curtain,bed frame,kitchen knife,storage basket,wall mirror",
        _HOME,
        {"color": "", "style": "modern,rustic,classic,industrial,coastal"},
        (9, 260),
    ),
    "electronics": (
        "bluetooth speaker,phone case,computer mouse,desk fan,video camera,wall charger,screen protector,travel headphones",
        _TECH,
        {"color": "", "size": "mini,compact,standard,pro,max"},
        (7, 300),
    ),
    "grocery": (
        "green tea,protein bar,pasta sauce,roasted almonds,oat milk,dried mango,dark chocolate,vegetable soup",
        _FOOD,
        {
            "flavor": "original,vanilla,lemon,ginger,berry,chili,cinnamon",
            "pack": "pack of 1,pack of 3,pack of 6,pack of 12",
        },
        (3, 60),
    ),
    "beauty": (
        "face cream,hair shampoo,lip balm,hand soap,body lotion,sun screen,nail polish,eye serum",
        _BODY,
        {"scent": "rose,citrus,lavender,mint,coconut,unscented", "volume": "1 ounce,4 ounce,8 ounce,16 ounce"},
        (4, 80),
    ),
}
_COLORS = "black,white,navy,red,olive,grey,pink,teal,brown,yellow,purple,orange"
_STARTS = "Ar Bel Cor Dav El Fer Gil Hol Ira Jun Kel Lor Mav Nel Ori Pax Quil Ren Sol Tav Ulm Ver Wil Yor Zen"
_ENDS = "ada bix co dia ena fit go hart ima jo kin lux mo nova ora pro qua ro sona tek una vio wear xa"
_WORDS = (
    "premium everyday deluxe original essential handy compact sturdy soft bright simple natural outdoor family studio"
)


def generate_catalogue(*, seed: str = "webshop") -> Catalogue:
    rng = random.Random(seed)
    asins: dict[str, None] = {}
    while len(asins) < NUM_PRODUCTS:
        asins["B0" + "".join(rng.choices("0123456789ABCDEFGHJKLMNPQRSTUVWXYZ", k=8))] = None
    return Catalogue({asin: _product(asin, rng) for asin in asins})


def draw_goal(catalogue: Catalogue, rng: random.Random) -> dict[str, Any]:
    """One to three attributes and most options of a product, and a price limit that it meets."""
    product = catalogue.products[rng.choice(catalogue.order)]
    attributes = tuple(rng.sample(product.attributes, rng.randint(1, 3)))
    options = {name: rng.choice(values) for name, values in product.options.items() if rng.random() < 0.8}
    upper = float(10 * (int(product.price) // 10 + rng.randint(1, 3)))
    wanted = "".join(f", {name}: {value}" for name, value in options.items())
    text = f"find me a {product.query} that is {' and '.join(attributes)}{wanted}, and price lower than {upper:.2f} dollars"
    goal = Goal(product.asin, text, attributes, tuple(options.values()), upper)
    return goal.plain(product.category[0])


def _product(asin: str, rng: random.Random) -> Product:
    department = rng.choice(list(_DEPARTMENTS))
    kinds, attributes, options, prices = _DEPARTMENTS[department]
    kind = rng.choice(kinds.split(","))
    own = tuple(rng.sample(attributes.split(","), rng.randint(3, 5)))
    brand = rng.choice(_STARTS.split()) + rng.choice(_ENDS.split())
    title = f"{brand} {rng.choice(_WORDS.split())} {kind}, {own[0]}, {own[1]}"
    return Product(
        asin=asin,
        title=title,
        category=(department, kind.split()[-1], kind),
        query=kind,
        price=rng.randint(prices[0] * 100, prices[1] * 100) / 100,
        attributes=own,
        options={name: _some(values or _COLORS, rng) for name, values in options.items()},
        description=f"The {kind} by {brand} for every day. It is {own[2]}.",
        features=own,
    )


def _some(values: str, rng: random.Random) -> tuple[str, ...]:
    known = values.split(",")
    picked = set(rng.sample(known, rng.randint(2, min(5, len(known)))))
    return tuple(value for value in known if value in picked)
