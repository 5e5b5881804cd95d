"""Who speaks a turn: the policy through an engine, a solver for warm starts, an outside model.

A Speaker answers in tokens. A TextSpeaker answers in words alone: what it says can be evaluated and cloned, never trained on.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ludus.controller.client.client import ClientSession
from ludus.engines.engine import Answer, Engine, TextEngine
from ludus.rollout.chat import Chat
from ludus.types import CURRENT, Action, Completion, Message, Sampling, Tool


@dataclass(frozen=True, slots=True)
class Words:
    """A conversation as far as it went, for a speaker who has no use for token ids."""

    messages: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()


class Speaker(Protocol):
    async def speak(
        self, ids: Sequence[int], *, sampling: Sampling, session_id: str, session: ClientSession, words: Words
    ) -> Completion:
        """Answers the conversation, which is in `ids` and, as it was said, in `words`."""
        ...

    async def release(self, session_id: str) -> None: ...


class TextSpeaker(ABC):
    @abstractmethod
    async def answer(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool],
        sampling: Sampling,
        session_id: str,
        session: ClientSession,
    ) -> Answer: ...

    async def release(self, session_id: str) -> None:
        return None


class PolicySpeaker:
    """The policy of that name, through the engine."""

    def __init__(self, engine: Engine, *, policy: str = CURRENT) -> None:
        self._engine = engine
        self._policy = policy

    async def speak(
        self, ids: Sequence[int], *, sampling: Sampling, session_id: str, session: ClientSession, words: Words
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
        self, ids: Sequence[int], *, sampling: Sampling, session_id: str, session: ClientSession, words: Words
    ) -> Completion:
        action = await session.solve(mistakes=self._mistakes, rng=random.Random(sampling.seed))
        spoken = tuple(self._chat.encode_action(action))
        blank = (0.0,) * len(spoken)
        return Completion(ids=spoken, logprobs=blank, versions=(0,) * len(spoken), stop="end", policy=self.POLICY)

    async def release(self, session_id: str) -> None:
        return None


class ChatSpeaker(TextSpeaker):
    """An outside model."""

    def __init__(self, engine: TextEngine) -> None:
        self._engine = engine

    async def answer(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool],
        sampling: Sampling,
        session_id: str,
        session: ClientSession,
    ) -> Answer:
        answer = await self._engine.answer(messages, tools=tools, sampling=sampling, session_id=session_id)
        return replace(answer, action=sayable(answer.action))


def sayable(action: Action) -> Action:
    """Half a surrogate pair, which an endpoint may well send, becomes a question mark: it could not be said again in the next prompt."""

    def whole(text: str) -> str:
        return text if text.isascii() else text.encode("utf-8", "replace").decode()

    calls = tuple(replace(call, name=whole(call.name), id=whole(call.id)) for call in action.tool_calls)
    return replace(action, content=whole(action.content), problem=whole(action.problem), tool_calls=calls)


class TextSolver(TextSpeaker):
    """The environment's own solver, as SolverSpeaker, without a model's tokens: no model is needed to collect what it does."""

    def __init__(self, *, mistakes: float) -> None:
        self._mistakes = mistakes

    async def answer(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool],
        sampling: Sampling,
        session_id: str,
        session: ClientSession,
    ) -> Answer:
        action = await session.solve(mistakes=self._mistakes, rng=random.Random(sampling.seed))
        return Answer(action, "end", policy=SolverSpeaker.POLICY)
