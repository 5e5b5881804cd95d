"""Games made from alfworld's domain, grammar and floor plans.

Promise: the same seed gives the same game, and each can be won. Text, commands and rules are those
of the genuine game; what lies where is drawn here. So results are not comparable with published
figures of ALFWorld, and every id of such a game begins with `generated`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from ludus.worlds.household import package

KINDS = {
    "pick_and_place_simple": (1, 201, 301, 401),
    "look_at_obj_in_light": (201, 301),
    "pick_clean_then_place_in_recep": (1, 401),
    "pick_heat_then_place_in_recep": (1,),
    "pick_cool_then_place_in_recep": (1,),
    "pick_two_obj_and_place": (1, 201, 301, 401),
}
"""Kinds of tasks, with the first floor plan of each sort of room that allows them: kitchens (1),
living rooms (201), bedrooms (301), bathrooms (401)."""
PLANS = {"train": range(6, 30), "dev": range(3, 6), "test": range(0, 3)}
"""Floor plans of each sort of room; no room is in two splits."""
NUM_GAMES = {"train": 150, "dev": 16, "test": 32}
_ACTION = {
    "pick_clean_then_place_in_recep": ("Cleanable", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("Heatable", "Microwave"),
    "pick_cool_then_place_in_recep": ("Coolable", "Fridge"),
}
_GROUPS = ("Cleanable", "Heatable", "Coolable", "Sliceable")
_LAMPS = ("DeskLamp", "FloorLamp")
_MAX_ALIKE = 3
"""Receptacles of a class. Thirty kitchen cabinets would take the planner a minute."""
_MAX_OTHERS = 12
_TRIES = 500
_ESCAPED = {"-": "_minus_", "|": "_bar_", "+": "_plus_", ".": "_dot_", ",": "_comma_"}


@dataclass(frozen=True)
class Room:
    """`classes` of things in it; `receptacles`: class and location by id."""

    classes: tuple[str, ...]
    receptacles: dict[str, tuple[str, str]]

    def places(self) -> set[str]:
        return {cls for cls, _ in self.receptacles.values()}

    def fitting(self, thing: str) -> list[str]:
        accepted = package.constants().VAL_RECEPTACLE_OBJECTS
        return sorted(place for place in self.places() if thing in accepted.get(place, ()))

    def things(self) -> list[str]:
        """Classes of the room that fit somewhere in it."""
        movable = package.constants().OBJECTS_SET - package.constants().RECEPTACLES
        return [cls for cls in self.classes if cls in movable and cls not in _LAMPS and self.fitting(cls)]

    def tops(self) -> list[str]:
        """Receptacles on which a lamp can stand: those without a door, except basins."""
        closed = package.constants().OPENABLE_CLASS_SET
        found = self.receptacles.items()
        return sorted(name for name, (cls, _) in found if cls not in closed and not cls.endswith("Basin"))

    def one_of(self, cls: str, *, rng: random.Random) -> str:
        return rng.choice(sorted(name for name, (own, _) in self.receptacles.items() if own == cls))


@dataclass(frozen=True)
class Target:
    """Put `thing`, treated as the kind says, into `place`, or look at it under `lamp`."""

    thing: str
    place: str
    lamp: str
    appliance: str


def games(split: str) -> list[dict[str, Any]]:
    return [
        {"id": f"generated-{kind}-{number}", "game": "generated", "kind": kind, "split": split, "number": number}
        for number in range(NUM_GAMES.get(split, 0))
        for kind in KINDS
    ]


def make_game(kind: str, *, split: str, number: int) -> tuple[dict[str, str], str]:
    rng = random.Random(f"household {kind} {split} {number}")
    for _ in range(_TRIES):
        plan = rng.choice(KINDS[kind]) + rng.choice(PLANS[split])
        room = Room(package.floor_plan(plan)[0], _receptacles(plan))
        if target := _target(kind, room, rng=rng):
            return _written(kind, room, target, rng=rng)
    raise AssertionError(f"no room of {split} allows {kind}")


def _receptacles(plan: int) -> dict[str, tuple[str, str]]:
    known = package.constants()
    classes, places = package.floor_plan(plan)
    fixed = known.RECEPTACLES - known.MOVABLE_RECEPTACLES_SET
    found: dict[str, tuple[str, str]] = {}
    for at, (x, y, turn, tilt) in places.items():
        name = at.partition("|")[0]
        name += "Basin" if name in ("Sink", "Bathtub") else ""
        if name in fixed and sum(cls == name for cls, _ in found.values()) < _MAX_ALIKE:
            basin = f"|{name}" if name.endswith("Basin") and not at.endswith(name) else ""
            found[f"{at}{basin}"] = name, f"loc|{round(x * 4)}|{round(y * 4)}|{round(turn)}|{round(tilt)}"
    present = {cls for cls, _ in found.values()}
    for index, name in enumerate(sorted(set(classes) & fixed - present)):
        place = name.removesuffix("Basin")
        found[f"{place}|{index}|0|0{f'|{name}' if place != name else ''}"] = name, f"loc|{100 + index}|0|0|0"
    return found


def _target(kind: str, room: Room, *, rng: random.Random) -> Target | None:
    """None if the room does not allow the kind."""
    group, appliance = _ACTION.get(kind, ("", ""))
    lamp = rng.choice(_LAMPS) if kind == "look_at_obj_in_light" else ""
    able = package.constants().VAL_ACTION_OBJECTS
    things = [thing for thing in room.things() if not group or thing in able[group]]
    if not things or (appliance and appliance not in room.places()) or (lamp and not room.tops()):
        return None
    thing = rng.choice(things)
    fitting = [place for place in room.fitting(thing) if place != appliance]
    if len(fitting) < 2:  # one to find it in, another to put it into
        return None
    return Target(thing, rng.choice(fitting), lamp, appliance)


def _written(kind: str, room: Room, target: Target, *, rng: random.Random) -> tuple[dict[str, str], str]:
    where: dict[str, tuple[str, str]] = {}  # class and receptacle of each thing, by its id

    def put(thing: str, receptacle: str) -> None:
        where[f"{thing}|{len(where)}|0|0"] = thing, receptacle

    elsewhere = [place for place in room.fitting(target.thing) if place != target.place]
    sources = [place for place in elsewhere if place != target.appliance] or elsewhere
    for _ in range(2 if kind == "pick_two_obj_and_place" else 1):
        put(target.thing, room.one_of(rng.choice(sources), rng=rng))
    others = [thing for thing in room.things() if thing != target.thing]
    for thing in sorted(rng.sample(others, min(_MAX_OTHERS, len(others)))):
        for _ in range(rng.randint(1, 2)):
            put(thing, room.one_of(rng.choice(room.fitting(thing)), rng=rng))
    if target.lamp:
        put(target.lamp, rng.choice(room.tops()))
    template = rng.choice(package.goal(kind)["templates"])
    words = {"obj": target.thing, "recep": target.place, "toggle": target.lamp, "mrecep": ""}
    goal = package.goal(kind)["pddl"].format(**words).replace("#", "-")
    problem = _problem(room, where, goal=goal)
    game = {"pddl_domain": package.domain(), "grammar": package.grammar(), "pddl_problem": problem}
    return game, template.format(**{key: word.lower() for key, word in words.items()})


def _problem(room: Room, where: dict[str, tuple[str, str]], *, goal: str) -> str:
    known, receptacles = package.constants(), room.receptacles
    start = "loc|999|0|0|0"
    objects = [("agent1", "agent"), (start, "location")]
    objects += [(f"{cls}Type", "otype") for cls in sorted(known.OBJECTS_SET - known.RECEPTACLES)]
    objects += [(f"{cls}Type", "rtype") for cls in sorted(known.RECEPTACLES)]
    objects += [(name, "object") for name in where] + [(name, "receptacle") for name in receptacles]
    objects += [(location, "location") for location in sorted({location for _, location in receptacles.values()})]
    facts = [f"atLocation agent1 {start}"]
    for name, (cls, location) in receptacles.items():
        facts += [f"receptacleType {name} {cls}Type", f"receptacleAtLocation {name} {location}"]
        facts += [f"openable {name}"] * (cls in known.OPENABLE_CLASS_SET)
    for name, (cls, receptacle) in where.items():
        facts += [f"objectType {name} {cls}Type", f"inReceptacle {name} {receptacle}"]
        facts += [f"objectAtLocation {name} {receptacles[receptacle][1]}"]
        facts += [f"toggleable {name}"] if cls in _LAMPS else [f"pickupable {name}"]
        able = [group for group in _GROUPS if cls in known.VAL_ACTION_OBJECTS[group]]
        facts += [f"{group.lower()} {name}" for group in able]
    types = sorted({cls for cls, _ in where.values()})
    facts += [f"canContain {place}Type {thing}Type" for thing in types for place in room.fitting(thing)]
    declared = "\n".join(f"{_escaped(name)} - {kind}" for name, kind in objects)
    listed = "\n".join(f"({_escaped(fact)})" for fact in facts)
    return (
        f"(define (problem generated)\n(:domain alfred)\n(:objects\n{declared}\n)\n"
        f"(:init\n(= (total-cost) 0)\n{listed}\n)\n{goal}"
    )


def _escaped(text: str) -> str:
    for sign, word in _ESCAPED.items():
        text = text.replace(sign, word)
    return text
