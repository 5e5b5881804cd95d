"""Games made from alfworld's domain, grammar and floor plans. Promise: the same seed gives the same game, and each can be won.

Text, commands and rules are those of the genuine game; what lies where is drawn here. So results are not comparable with published figures
of ALFWorld, and every id of such a game begins with `generated`.
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
"""The six kinds of tasks, and the first floor plans of the rooms that allow them: kitchens, living rooms, bedrooms, bathrooms."""
PLANS = {"train": range(6, 30), "dev": range(3, 6), "test": range(0, 3)}
"""Floor plans of each sort of room: no split has a room of another."""
NUM_GAMES = {"train": 150, "dev": 16, "test": 32}
_ACTION = {
    "pick_clean_then_place_in_recep": ("Cleanable", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("Heatable", "Microwave"),
    "pick_cool_then_place_in_recep": ("Coolable", "Fridge"),
}
_LAMPS = ("DeskLamp", "FloorLamp")
_MAX_ALIKE = 3
"""Receptacles of a class. Some kitchens have thirty cabinets, in which the planner would search for a minute."""
_MAX_OTHERS = 12
_TRIES = 500
_ESCAPED = {"-": "_minus_", "|": "_bar_", "+": "_plus_", ".": "_dot_", ",": "_comma_"}


@dataclass(frozen=True)
class Target:
    """Put `thing` (after what the kind says was done to it) into `place`, or look at it under `lamp`."""

    thing: str
    place: str
    lamp: str
    appliance: str


def games(split: str) -> list[dict[str, Any]]:
    """As many of each kind."""
    return [
        {"id": f"generated-{kind}-{number}", "game": "generated", "kind": kind, "split": split, "number": number}
        for number in range(NUM_GAMES.get(split, 0))
        for kind in KINDS
    ]


def make_game(kind: str, *, split: str, number: int) -> tuple[dict[str, str], str]:
    """The game as textworld wants it, and its task in words."""
    rng = random.Random(f"household {kind} {split} {number}")
    for _ in range(_TRIES):
        plan = rng.choice(KINDS[kind]) + rng.choice(PLANS[split])
        receptacles = _receptacles(plan)
        if target := _target(kind, plan, receptacles, rng=rng):
            return _written(kind, plan, receptacles, target, rng=rng)
    raise AssertionError(f"no room of {split} allows {kind}")


def _receptacles(plan: int) -> dict[str, tuple[str, str]]:
    """Class and location of each receptacle of a room, by its id."""
    known = package.constants()
    classes, places = package.floor_plan(plan)
    fixed = known.RECEPTACLES - known.MOVABLE_RECEPTACLES_SET
    found: dict[str, tuple[str, str]] = {}
    for id, (x, y, turn, tilt) in places.items():
        name = f"{id.partition('|')[0]}Basin" if id.partition("|")[0] in ("Sink", "Bathtub") else id.partition("|")[0]
        if name in fixed and sum(cls == name for cls, _ in found.values()) < _MAX_ALIKE:
            basin = f"|{name}" if name.endswith("Basin") and not id.endswith(name) else ""
            found[f"{id}{basin}"] = name, f"loc|{round(x * 4)}|{round(y * 4)}|{round(turn)}|{round(tilt)}"
    present = {cls for cls, _ in found.values()}
    for index, name in enumerate(sorted(set(classes) & fixed - present)):
        place = name.removesuffix("Basin")
        found[f"{place}|{index}|0|0{f'|{name}' if place != name else ''}"] = name, f"loc|{100 + index}|0|0|0"
    return found


def _target(kind: str, plan: int, receptacles: dict[str, tuple[str, str]], *, rng: random.Random) -> Target | None:
    """None where this room does not allow the kind."""
    known = package.constants()
    present = {cls for cls, _ in receptacles.values()}
    group, appliance = _ACTION.get(kind, ("", ""))
    lamp = rng.choice(_LAMPS) if kind == "look_at_obj_in_light" else ""
    things = [thing for thing in _things(plan, present) if not group or thing in known.VAL_ACTION_OBJECTS[group]]
    if not things or (appliance and appliance not in present) or (lamp and not (_tops(receptacles))):
        return None
    thing = rng.choice(things)
    fitting = [place for place in _fitting(thing, present) if place != appliance]
    if len(fitting) < 2:  # one to find it in, another to put it into
        return None
    return Target(thing, rng.choice(fitting), lamp, appliance)


def _things(plan: int, present: set[str]) -> list[str]:
    """Classes of the room that fit somewhere in it."""
    known = package.constants()
    return [
        cls
        for cls in package.floor_plan(plan)[0]
        if cls in known.OBJECTS_SET - known.RECEPTACLES and cls not in _LAMPS and _fitting(cls, present)
    ]


def _fitting(thing: str, present: set[str]) -> list[str]:
    accepted = package.constants().VAL_RECEPTACLE_OBJECTS
    return sorted(place for place in present if thing in accepted.get(place, ()))


def _tops(receptacles: dict[str, tuple[str, str]]) -> list[str]:
    """Where a lamp can stand: what has no door, and is no basin."""
    closed = package.constants().OPENABLE_CLASS_SET
    return sorted(id for id, (cls, _) in receptacles.items() if cls not in closed and not cls.endswith("Basin"))


def _written(
    kind: str, plan: int, receptacles: dict[str, tuple[str, str]], target: Target, *, rng: random.Random
) -> tuple[dict[str, str], str]:
    present = {cls for cls, _ in receptacles.values()}
    where: dict[str, tuple[str, str]] = {}  # class and receptacle of each thing, by its id
    sources = [place for place in _fitting(target.thing, present) if place not in (target.place, target.appliance)]
    sources = sources or [place for place in _fitting(target.thing, present) if place != target.place]
    for _ in range(2 if kind == "pick_two_obj_and_place" else 1):
        _put(where, target.thing, _of_class(receptacles, rng.choice(sources), rng=rng))
    others = [thing for thing in _things(plan, present) if thing != target.thing]
    for thing in sorted(rng.sample(others, min(_MAX_OTHERS, len(others)))):
        for _ in range(rng.randint(1, 2)):
            _put(where, thing, _of_class(receptacles, rng.choice(_fitting(thing, present)), rng=rng))
    if target.lamp:
        _put(where, target.lamp, rng.choice(_tops(receptacles)))
    template = rng.choice(package.goal(kind)["templates"])
    words = {"obj": target.thing, "recep": target.place, "toggle": target.lamp, "mrecep": ""}
    goal = package.goal(kind)["pddl"].format(**words).replace("#", "-")
    problem = _problem(receptacles, where, goal=goal)
    game = {"pddl_domain": package.domain(), "grammar": package.grammar(), "pddl_problem": problem}
    return game, template.format(**{key: word.lower() for key, word in words.items()})


def _put(where: dict[str, tuple[str, str]], thing: str, receptacle: str) -> None:
    where[f"{thing}|{len(where)}|0|0"] = thing, receptacle


def _of_class(receptacles: dict[str, tuple[str, str]], name: str, *, rng: random.Random) -> str:
    return rng.choice(sorted(id for id, (cls, _) in receptacles.items() if cls == name))


def _problem(receptacles: dict[str, tuple[str, str]], where: dict[str, tuple[str, str]], *, goal: str) -> str:
    known = package.constants()
    types = {cls for cls, _ in where.values()}
    places = {cls for cls, _ in receptacles.values()}
    start = "loc|999|0|0|0"
    objects = [("agent1", "agent"), (start, "location")]
    objects += [(f"{cls}Type", "otype") for cls in sorted(known.OBJECTS_SET - known.RECEPTACLES)]
    objects += [(f"{cls}Type", "rtype") for cls in sorted(known.RECEPTACLES)]
    objects += [(id, "object") for id in where] + [(id, "receptacle") for id in receptacles]
    objects += [(location, "location") for location in sorted({location for _, location in receptacles.values()})]
    facts = [f"atLocation agent1 {start}"]
    for id, (cls, location) in receptacles.items():
        facts += [f"receptacleType {id} {cls}Type", f"receptacleAtLocation {id} {location}"]
        facts += [f"openable {id}"] * (cls in known.OPENABLE_CLASS_SET)
    for id, (cls, receptacle) in where.items():
        facts += [f"objectType {id} {cls}Type", f"inReceptacle {id} {receptacle}"]
        facts += [f"objectAtLocation {id} {receptacles[receptacle][1]}"]
        facts += [f"toggleable {id}"] if cls in _LAMPS else [f"pickupable {id}"]
        facts += [
            f"{group.lower()} {id}"
            for group in ("Cleanable", "Heatable", "Coolable", "Sliceable")
            if cls in known.VAL_ACTION_OBJECTS[group]
        ]
    facts += [f"canContain {place}Type {thing}Type" for thing in sorted(types) for place in _fitting(thing, places)]
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
