"""Samplers write the model's side of a session, one turn at a time.

A sampler answers with a Completion (tokens with their logprobs) or, where only text can be had,
with an Answer: text can be evaluated and cloned, never trained on.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ludus.controller.client.client import ClientSession
from ludus.engines.engine import Answer, Generator, TextEngine
from ludus.rollout import tool_calls
from ludus.rollout.chat import Chat
from ludus.types import CURRENT, Action, Completion, Message, Sampling, Tool

SOLVER = "solver"
"""The policy name of an environment's own solver."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The conversation so far, as token ids and as chat history. A session in text has no ids."""

    ids: Sequence[int] = ()
    messages: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()


class Sampler(Protocol):
    async def sample(
        self, prompt: Prompt, *, sampling: Sampling, session_id: str, policy: str, session: ClientSession
    ) -> Completion | Answer:
        """The next turn, by the policy of that name."""

    async def release(self, session_id: str) -> None:
        """The session is over: forget what was cached for it."""
        return


class PolicySampler(Sampler):
    """Policies of an engine; those named in `endpoints` are sampled there and keep their name."""

    def __init__(self, engine: Generator, *, endpoints: Mapping[str, Sampler] | None = None) -> None:
        self._engine, self._endpoints = engine, dict(endpoints or {})

    async def sample(
        self, prompt: Prompt, *, sampling: Sampling, session_id: str, policy: str, session: ClientSession
    ) -> Completion | Answer:
        endpoint = self._endpoints.get(policy)
        if endpoint is None:
            return await self._engine.generate(prompt.ids, sampling=sampling, session_id=session_id, policy=policy)
        said = await endpoint.sample(prompt, sampling=sampling, session_id=session_id, policy=CURRENT, session=session)
        return replace(said, policy=policy)

    async def release(self, session_id: str) -> None:
        await self._engine.release(session_id)


class SolverSampler(Sampler):
    """The environment's own solver, which plays a random valid action with chance `mistakes`. With
    a `chat` it answers in tokens, whose logprobs mean nothing."""

    def __init__(self, *, mistakes: float, chat: Chat | None = None) -> None:
        self._mistakes, self._chat = mistakes, chat

    async def sample(
        self, prompt: Prompt, *, sampling: Sampling, session_id: str, policy: str, session: ClientSession
    ) -> Completion | Answer:
        action = await session.solve(mistakes=self._mistakes, rng=random.Random(sampling.seed))
        if self._chat is None:
            return Answer(action, "end", policy=SOLVER)
        ids = tuple(self._chat.encode_action(action))
        return Completion(ids, (0.0,) * len(ids), (0,) * len(ids), "end", policy=SOLVER)


class ChatSampler(Sampler):
    """A model behind an endpoint that answers in text.

    With a `chat` the text is written through the policy's own template, a call in the policy's own
    format: what is stored, carried out and read in the next turn is the same tokens. Nobody sampled
    them, so each has the logprob NaN (masked, never trained) and version 0."""

    def __init__(self, engine: TextEngine, *, chat: Chat | None = None) -> None:
        self._engine, self._chat = engine, chat

    async def sample(
        self, prompt: Prompt, *, sampling: Sampling, session_id: str, policy: str, session: ClientSession
    ) -> Completion | Answer:
        answer = await self._engine.answer(
            prompt.messages, tools=prompt.tools, sampling=sampling, session_id=session_id
        )
        answer = replace(answer, action=encodable(answer.action))
        if self._chat is None:
            return answer
        action = tool_calls.read_from_text(answer.action) if prompt.tools else answer.action
        # ids are the server's, not the model's
        calls = tuple(replace(call, id="") for call in action.tool_calls)
        ids = self._chat.encode_action(replace(action, tool_calls=calls))
        complete = answer.stop == "end" and len(ids) <= sampling.max_tokens  # the policy's tokens
        ids = ids if complete else ids[:-1][: sampling.max_tokens]
        stop = answer.stop if complete else "length"
        return Completion(tuple(ids), (math.nan,) * len(ids), (0,) * len(ids), stop, policy=answer.policy)


def encodable(action: Action) -> Action:
    """Replaces lone surrogates of an endpoint by question marks: UTF-8 cannot encode them."""

    def whole(text: str) -> str:
        return text if text.isascii() else text.encode("utf-8", "replace").decode()

    calls = tuple(replace(call, name=whole(call.name), id=whole(call.id)) for call in action.tool_calls)
    return replace(action, content=whole(action.content), problem=whole(action.problem), tool_calls=calls)
