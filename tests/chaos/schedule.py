"""What is killed, and when. Promise: the seed decides, and nothing else."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

Victim = Literal["controller", "worker 0", "worker 1", "client", "sandbox", "pen"]
WEIGHTS: dict[Victim, float] = {"controller": 2, "worker 0": 1.5, "worker 1": 1.5, "client": 1, "sandbox": 2, "pen": 1}
SERVICES: tuple[Victim, ...] = ("controller", "worker 0", "worker 1", "client")
"""What somebody has to start again; the rest is started by workers."""
LONGEST_PAUSE_S, LONGEST_AWAY_S = 0.8, 1.0


@dataclass(frozen=True, slots=True)
class Kill:
    at_s: float
    """Since its burst began."""
    victim: Victim
    which: float
    """Of several processes the one at this share of the list."""
    away_s: float
    """Until it is started again; nothing for what others start."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Bursts of kills; between two of them everything may come back, or most kills would find
    nobody.
    """

    seed: int
    bursts: tuple[tuple[Kill, ...], ...]
    at_the_end: Literal["stop", "kill"]
    """Whether everything is stopped in order when all is over, or killed at once while sessions
    run."""


def draw(seed: int, *, num_bursts: int, num_kills: int) -> Schedule:
    rng = random.Random(seed)
    at_the_end = rng.choice(("stop", "kill"))
    bursts = tuple(_burst(rng, num_kills=num_kills) for _ in range(num_bursts))
    return Schedule(seed, bursts, at_the_end=at_the_end)


def _burst(rng: random.Random, *, num_kills: int) -> tuple[Kill, ...]:
    """No service twice: it would hardly be back."""
    at_s, kills, weights = 0.0, [], dict(WEIGHTS)
    for _ in range(num_kills):
        at_s += rng.uniform(0.0, LONGEST_PAUSE_S)
        (victim,) = rng.choices(list(weights), weights=list(weights.values()))
        if victim in SERVICES:
            del weights[victim]
        kills.append(Kill(at_s, victim, which=rng.random(), away_s=rng.uniform(0.0, LONGEST_AWAY_S)))
    return tuple(kills)
