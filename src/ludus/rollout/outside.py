"""Outside models that speak in a session beside its policy. Promise: what is stored, what is carried out and what the policy reads in its
next turn is one and the same: the tokens.

    in words     an endpoint that answers in text: its words are written through the policy's own template, as a call of the policy's own
                 format. Nobody sampled these tokens, so each has the logprob NaN: they can be read, stored and masked, never trained
    in tokens    an endpoint with the policy's tokenizer that returns ids and logprobs: they are taken as they are
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ludus.controller.client.client import ClientSession
from ludus.engines.engine import Answer, Engine, TextEngine
from ludus.rollout.chat import Chat
from ludus.rollout.conversation import read
from ludus.rollout.speaker import Words, sayable
from ludus.types import Completion, Sampling


class OutsideInWords:
    """`policy` is the name that its turns are stored with; its weights are nobody's version, which is stored as 0."""

    def __init__(self, engine: TextEngine, *, chat: Chat, policy: str) -> None:
        self._engine, self._chat, self._policy = engine, chat, policy

    async def speak(
        self, ids: Sequence[int], *, sampling: Sampling, session_id: str, session: ClientSession, words: Words
    ) -> Completion:
        answer = await self._engine.answer(words.messages, tools=words.tools, sampling=sampling, session_id=session_id)
        spoken, complete = self._written(answer, tools=bool(words.tools), most=sampling.max_tokens)
        return Completion(
            ids=spoken,
            logprobs=(math.nan,) * len(spoken),
            versions=(0,) * len(spoken),
            stop="end" if complete else "length",
            policy=self._policy,
        )

    async def release(self, session_id: str) -> None:
        return None

    def _written(self, answer: Answer, *, tools: bool, most: int) -> tuple[tuple[int, ...], bool]:
        """The answer in the policy's tokens, and whether it is whole: its limit is in these tokens, not in the server's own."""
        action = read(sayable(answer.action)) if tools else sayable(answer.action)
        calls = tuple(
            replace(call, id="") for call in action.tool_calls
        )  # the server's ids are no words of the model's
        said = self._chat.encode_action(replace(action, tool_calls=calls))
        complete = answer.stop == "end" and len(said) <= most
        return tuple(said if complete else said[:-1][:most]), complete


class OutsideInTokens:
    def __init__(self, engine: Engine, *, policy: str) -> None:
        self._engine, self._policy = engine, policy

    async def speak(
        self, ids: Sequence[int], *, sampling: Sampling, session_id: str, session: ClientSession, words: Words
    ) -> Completion:
        completion = await self._engine.generate(ids, sampling=sampling, session_id=session_id)
        return replace(completion, policy=self._policy)

    async def release(self, session_id: str) -> None:
        await self._engine.release(session_id)
