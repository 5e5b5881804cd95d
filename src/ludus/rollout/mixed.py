"""Cross-policy sampling (AgentRL, 2510.04206): a coin decides who speaks, the current policy or, with its chance, one of the others.

Promise: every token carries its own speaker's name, version and logprob, and the coin takes nothing from the noise of the tokens: with
no others, what is said is bit for bit what the current policy says alone.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Literal

from ludus.controller.client import ClientSession
from ludus.engines.engine import Engine
from ludus.seeds import derive
from ludus.types import CURRENT, Completion, Sampling


class MixedSpeaker:
    """`others` are chances by policy; `draw`: the coin is tossed per turn, as published, or once per session."""

    def __init__(
        self, engine: Engine, *, others: Mapping[str, float], draw: Literal["turn", "session"], seed: int
    ) -> None:
        self._engine, self._others, self._draw, self._seed = engine, dict(others), draw, seed

    async def speak(
        self, ids: Sequence[int], *, sampling: Sampling, session_id: str, session: ClientSession
    ) -> Completion:
        toss = derive(sampling.seed, "speaker") if self._draw == "turn" else derive(self._seed, "speaker", session_id)
        policy = pick_speaker(self._others, random.Random(toss).random())
        return await self._engine.generate(ids, sampling=sampling, session_id=session_id, policy=policy)

    async def release(self, session_id: str) -> None:
        await self._engine.release(session_id)


def pick_speaker(others: Mapping[str, float], toss: float) -> str:
    """`toss` is uniform in [0, 1): the others' chances come first, and `current` has the rest."""
    for policy, chance in others.items():
        if toss < chance:
            return policy
        toss -= chance
    return CURRENT
