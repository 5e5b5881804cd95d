"""A generated book of recipes: materials, and things of depth 1 to 4 made of them and each
other."""

from __future__ import annotations

import random

from ludus.worlds.textcraft.book import Book, Recipe, make_book

PER_DEPTH = 400
_GROUPS = {
    "log": "oak birch pine maple cedar willow",
    "wool": "white black brown grey red blue",
    "stone": "grey white black river sand moss",
    "clay": "red yellow white grey",
    "fibre": "hemp flax cotton nettle",
    "ore": "iron copper tin silver gold zinc",
}
_MATERIALS = """
amber bamboo bark beeswax bone chalk charcoal coal cork dye egg ember feather fern flint fur garnet glass gravel honey
horn ice ivory jade leaf leather lime milk moonstone moss mud oil opal paper pearl pebble peat pitch quartz reed resin
root rubber salt sand sap seed shell silk slate snow straw sugar sulphur tallow vine water wax
"""
_STYLES = """
amber ancient barbed braided bright broad carved coiled curved dark double fine folded gilded glazed heavy hollow
inlaid jagged knotted light long narrow oiled painted plain plated polished ridged ringed rough round short simple
slim smooth spiked square stout tall tiny twin waxed wide
"""
_THINGS = """
anvil arrow axe banner barrel basket beacon bell bellows bench blade boat bolt bow bowl bridge brooch bucket buckle
cage candle cart chain chest chisel clasp cloak comb compass cord crate crown cup dial drum fence flask flute frame
gate gear hammer handle harp hinge hook horn jar kettle key kite ladder lamp lantern latch lens lever lock loom mask
mast mirror nail needle net oar paddle pane pen pipe plate plough pole pouch press pump quill rack raft ring rod rope
rudder saddle sail saw scale scroll shelf shield shovel sieve sled spade spear spindle spool spring staff statue stool
table tent tile torch tower tray trowel valve vase wheel whistle
"""


def generate_book(*, seed: str = "textcraft") -> Book:
    rng = random.Random(seed)
    groups = {f"any {kind}": tuple(f"{sort} {kind}" for sort in sorts.split()) for kind, sorts in _GROUPS.items()}
    materials = sorted({*_MATERIALS.split(), *(member for members in groups.values() for member in members)})
    names = rng.sample([f"{style} {thing}" for style in _STYLES.split() for thing in _THINGS.split()], 4 * PER_DEPTH)
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
