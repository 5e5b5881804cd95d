"""Cross-policy sampling (AgentRL, 2510.04206): a coin decides who speaks, the current policy or, with its chance, one of the others.

Promise: every token carries its own speaker's name, version and logprob, and the coin takes nothing from the noise of the tokens: with
no others, what is said is bit for bit what the current policy says alone.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Literal

from ludus.controller.client.client import ClientSession
from ludus.engines.engine import Engine
from ludus.rollout.speaker import Speaker, Words
from ludus.seeds import derive
from ludus.types import CURRENT, Completion, Sampling


class MixedSpeaker:
    """`others` are chances by policy, of the engine or `outside` of it; `draw`: the coin is tossed per turn, as published, or once per
    session."""

    def __init__(
        self,
        engine: Engine,
        *,
        others: Mapping[str, float],
        draw: Literal["turn", "session"],
        seed: int,
        outside: Mapping[str, Speaker] | None = None,
    ) -> None:
        self._engine, self._others, self._draw, self._seed = engine, dict(others), draw, seed
        self._outside = dict(outside or {})
        self._drawn: dict[str, str] = {}  # who speaks in a live session, where that is drawn once
        self.part = 1.0
        """Of the others' chances, what counts at present."""

    async def speak(
        self, ids: Sequence[int], *, sampling: Sampling, session_id: str, session: ClientSession, words: Words
    ) -> Completion:
        policy = self._pick(sampling, session_id)
        if policy in self._outside:
            speaker = self._outside[policy]
            return await speaker.speak(ids, sampling=sampling, session_id=session_id, session=session, words=words)
        return await self._engine.generate(ids, sampling=sampling, session_id=session_id, policy=policy)

    async def release(self, session_id: str) -> None:
        self._drawn.pop(session_id, None)
        await self._engine.release(session_id)

    def _pick(self, sampling: Sampling, session_id: str) -> str:
        chances = {name: self.part * chance for name, chance in self._others.items()}
        if self._draw == "turn":
            return pick_speaker(chances, _toss(sampling.seed, "speaker"))
        if session_id not in self._drawn:  # once: the part may change while a session lasts
            self._drawn[session_id] = pick_speaker(chances, _toss(self._seed, "speaker", session_id))
        return self._drawn[session_id]


def pick_speaker(others: Mapping[str, float], toss: float) -> str:
    """`toss` is uniform in [0, 1): the others' chances come first, and `current` has the rest."""
    for policy, chance in others.items():
        if toss < chance:
            return policy
        toss -= chance
    return CURRENT


def part_at(schedule: Sequence[tuple[int, float]], *, step: int) -> float:
    """Of the others' chances, what counts after `step` optimiser steps: linear between the points, level before the first and after the
    last. Example: [(0, 1.0), (200, 0.0)] gives 0.25 at step 150."""
    if not schedule:
        return 1.0
    before = [point for point in schedule if point[0] <= step]
    after = [point for point in schedule if point[0] > step]
    if not before or not after:
        return (before or after)[-1 if before else 0][1]
    (start, low), (end, high) = before[-1], after[0]
    return low + (high - low) * (step - start) / (end - start)


def _toss(*parts: str | int) -> float:
    return random.Random(derive(*parts)).random()
