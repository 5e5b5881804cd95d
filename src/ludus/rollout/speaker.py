"""Who speaks a turn: the policy through an engine, or a solver for warm starts. Both answer in tokens, so one `play` serves both."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from ludus.controller.client import ClientSession
from ludus.engines.engine import Engine
from ludus.rollout.chat import Chat
from ludus.types import CURRENT, Completion, Sampling


class Speaker(Protocol):
    async def speak(
        self, ids: Sequence[int], *, sampling: Sampling, session_id: str, session: ClientSession
    ) -> Completion: ...

    async def release(self, session_id: str) -> None: ...


class PolicySpeaker:
    """The policy of that name, through the engine."""

    def __init__(self, engine: Engine, *, policy: str = CURRENT) -> None:
        self._engine = engine
        self._policy = policy

    async def speak(
        self, ids: Sequence[int], *, sampling: Sampling, session_id: str, session: ClientSession
    ) -> Completion:
        return await self._engine.generate(ids, sampling=sampling, session_id=session_id, policy=self._policy)

    async def release(self, session_id: str) -> None:
        await self._engine.release(session_id)


class SolverSpeaker:
    """The environment's own solver, playing a random valid action with chance `mistakes`. Its tokens have no logprobs worth the name."""

    POLICY = "solver"

    def __init__(self, chat: Chat, *, mistakes: float) -> None:
        self._chat = chat
        self._mistakes = mistakes

    async def speak(
        self, ids: Sequence[int], *, sampling: Sampling, session_id: str, session: ClientSession
    ) -> Completion:
        action = await session.solve(mistakes=self._mistakes, rng=random.Random(sampling.seed))
        spoken = tuple(self._chat.encode_action(action))
        blank = (0.0,) * len(spoken)
        return Completion(ids=spoken, logprobs=blank, versions=(0,) * len(spoken), stop="end", policy=self.POLICY)

    async def release(self, session_id: str) -> None:
        return None
