"""Text of sessions that environments' solvers play, for the tokenizer of `tiny`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager

from ludus.controller.client.client import Client, ClientSession
from ludus.controller.records import Described
from ludus.errors import LudusError
from ludus.rollout import tool_calls
from ludus.types import Observation, Task

NUM_SESSIONS = 24
"""Sessions per environment."""
SESSION_S = 20.0
"""A session that takes longer is cut off."""


async def corpus(client: Client, environments: Mapping[str, Described]) -> AsyncIterator[str]:
    for name, environment in environments.items():
        tasks = (await client.tasks(name, "train"))[:NUM_SESSIONS]
        max_turns = environment.max_turns or 8
        for texts in await asyncio.gather(*(_texts_of_session(client, task, max_turns=max_turns) for task in tasks)):
            for text in texts:
                yield text


@asynccontextmanager
async def opened(client: Client, task: Task, *, seed: int, timeout_s: float) -> AsyncIterator[ClientSession]:
    session = await client.open(task, seed=seed, timeout_s=timeout_s)
    try:
        yield session
    finally:
        await session.close()


async def _texts_of_session(client: Client, task: Task, *, max_turns: int) -> list[str]:
    rng, texts = random.Random(task.id), list[str]()
    try:
        async with opened(client, task, seed=0, timeout_s=SESSION_S) as session, asyncio.timeout(SESSION_S):
            observation = await session.start()
            texts += _texts(observation)
            for _ in range(max_turns):
                if observation.done:
                    break
                action = await session.solve(mistakes=0.5, rng=rng)
                texts.append(tool_calls.write(action, format="hermes"))
                observation = await session.act(action)
                texts += _texts(observation)
    except (LudusError, TimeoutError):
        pass  # there is no solver, or it failed: the text so far is enough for a tokenizer
    return texts


def _texts(observation: Observation) -> Iterator[str]:
    yield from (message.content for message in observation.messages)
    for tool in observation.tools or ():
        yield f"{tool.name}({', '.join(tool.parameters.get('properties', {}))}): {tool.description}"
