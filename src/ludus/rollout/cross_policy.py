"""Cross-policy sampling (AgentRL, 2510.04206): by chance another policy samples a turn.

Promise: the choice follows from the order and the seeds alone and takes nothing from the noise of
the tokens: without other policies, tokens are bit for bit those of the current policy.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Literal

from ludus.seeds import derive
from ludus.types import Order

Draw = Literal["turn", "session"]
"""Whether the policy is drawn for every turn, as published, or once per session."""


def policy_for(order: Order, *, draw: Draw, run_seed: int, session_id: str, turn_seed: int) -> str:
    """The policy that samples this turn."""
    if not order.others:
        return order.policy
    seed = derive(turn_seed, "speaker") if draw == "turn" else derive(run_seed, "speaker", session_id)
    return pick_policy(order, toss=random.Random(seed).random())


def pick_policy(order: Order, *, toss: float) -> str:
    """`toss` is uniform in [0, 1): the others' chances come first, `order.policy` has the rest."""
    for policy, chance in order.others.items():
        if toss < chance:
            return policy
        toss -= chance
    return order.policy


def chances_at(others: Mapping[str, float], schedule: Sequence[tuple[int, float]], *, step: int) -> dict[str, float]:
    """The chances of the other policies after `step` optimiser steps."""
    part = part_at(schedule, step=step)
    return {name: part * chance for name, chance in others.items()}


def part_at(schedule: Sequence[tuple[int, float]], *, step: int) -> float:
    """The part of the chances that counts at `step`: linear between the points, constant beyond.

    Example: [(0, 1.0), (200, 0.0)] gives 0.25 at step 150."""
    if not schedule:
        return 1.0
    before = [point for point in schedule if point[0] <= step]
    after = [point for point in schedule if point[0] > step]
    if not before or not after:
        return (before or after)[-1 if before else 0][1]
    (start, low), (end, high) = before[-1], after[0]
    return low + (high - low) * (step - start) / (end - start)
