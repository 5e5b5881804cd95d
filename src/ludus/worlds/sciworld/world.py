"""ScienceWorld: school experiments in a house of ten rooms, by typed commands.

Promise: train, dev and test share no variation of an experiment; each is part of the library's own
split of the same name. The score is paid as it grows, 1 in all, without what a task grants at its
start. A wrong decision (focus on the wrong thing) ends the session and takes it all back. The
package's own `step` is not used: it also lists all valid commands, which takes ten times as long.
"""

from __future__ import annotations

import random
import re
from typing import Annotated, Any

from pydantic import Field

from ludus.environments import Reply
from ludus.errors import nearest
from ludus.worlds.files import own_data
from ludus.worlds.sciworld.simulator import POOL

_DATA = own_data("sciworld/experiments.toml")
VARIATIONS: dict[str, int] = _DATA["variations"]
SHORT: tuple[str, ...] = tuple(_DATA["short"])
MAX_COMMAND_CHARS = 200
_NOT_ASCII = re.compile(r"[^\x20-\x7e]+")
"""Commands are ASCII, and half a surrogate pair breaks the connection to Java."""
_PATHS: dict[tuple[str, int], list[str]] = {}
"""Gold paths by experiment and variation; computing one takes most of a second."""
_PER_EXPERIMENT = {"train": 60, "dev": 8, "test": 12}


class SciWorld:
    """You are in a house with a workshop, a kitchen and other rooms. Carry out the task: say one command a turn, made from those listed.

    OBJ and LOC stand for names of things and rooms as you see them. To `focus on` a thing is a decision: do it only where the task says so.
    """

    isolation = "process"
    capabilities = ("planning", "reasoning", "memory")

    def __init__(self, *, experiments: tuple[str, ...] = SHORT, max_turns: Annotated[int, Field(ge=1)] = 40) -> None:
        """experiments: by the library's names; long ones (boil, grow-plant) take over 100 turns."""
        for name in experiments:
            if name not in VARIATIONS:
                raise ValueError(f"no experiment {name!r}.{nearest(name, VARIATIONS)} Known: {', '.join(VARIATIONS)}")
        self.experiments, self.max_turns = experiments, max_turns

    def tasks(self, split: str) -> list[dict[str, Any]]:
        return [
            {"id": f"{name}-{variation}", "experiment": name, "variation": variation}
            for name in self.experiments
            for variation in variations(name, split=split)[: _PER_EXPERIMENT.get(split, 0)]
        ]

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        self.task, self.earned = task, 0.0
        self.said: list[str] = []
        self.simulator = POOL.take()
        self.simulator.load(task["experiment"], task["variation"])
        commands = ", ".join(sorted(self.simulator.call("getPossibleActions")))
        first = self.simulator.call("step", "look around")
        self.given = max(0.0, float(self.simulator.call("getScore")))
        return f"{self.simulator.call('getTaskDescription')}\ncommands: {commands}\n{first}"

    def act(self, text: str) -> Reply:
        command = _NOT_ASCII.sub(" ", text).strip()
        if not command or len(command) > MAX_COMMAND_CHARS:
            return Reply(f"say one command of at most {MAX_COMMAND_CHARS} characters", invalid=True)
        self.said.append(command)
        told = self.simulator.call("step", command)
        before, now = self.earned, float(self.simulator.call("getScore"))
        self.earned = max(0.0, now - self.given) / (1 - self.given)
        done = bool(self.simulator.call("getCompleted")) or now < 0
        metrics = {"success": float(now >= 1 - 1e-6), "score": max(0.0, now)}
        unknown = told.startswith("No known action")
        return Reply(told, reward=self.earned - before, done=done, metrics=metrics, invalid=unknown)

    def solve(self) -> str:
        """The next command of the library's gold path, which does not correct mistakes."""
        known = self.task["experiment"], self.task["variation"]
        if known not in _PATHS:
            _PATHS[known] = self._gold_path()
        plan, followed = _PATHS[known], 0
        for command in self.said:
            followed += followed < len(plan) and command == plan[followed]
        return plan[min(followed, len(plan) - 1)]

    def random_action(self, rng: random.Random) -> str:
        template = rng.choice(sorted(self.simulator.call("getPossibleActions")))
        things = sorted(self.simulator.call("getPossibleObjects"))
        return re.sub(r"\b(OBJ|LOC)\b", lambda _: rng.choice(things), template)

    def close(self) -> None:
        if hasattr(self, "simulator"):
            POOL.give_back(vars(self).pop("simulator"))

    def _gold_path(self) -> list[str]:
        """Computing it resets the experiment, so the session's commands are then replayed."""
        self.simulator.load(self.task["experiment"], self.task["variation"], gold=True)
        path = list(self.simulator.call("getGoldActionSequence"))
        for command in ["look around", *self.said]:
            self.simulator.call("step", command)
        return path


def variations(experiment: str, *, split: str) -> range:
    """The library's rule: half of the variations train, a quarter are dev, the rest test."""
    quarter, total = VARIATIONS[experiment] // 4, VARIATIONS[experiment]
    bounds = {"train": (0, 2 * quarter), "dev": (2 * quarter, 3 * quarter), "test": (3 * quarter, total)}
    return range(*bounds.get(split, (0, 0)))
