"""A run file becomes parts: environments, model, chat. Whatever the run asks for and a part cannot do is refused here, at the start."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ludus.config import RunConfig
from ludus.controller.client import Client, ClientSession
from ludus.controller.protocol import Described
from ludus.engines.embedded import EmbeddedEngine
from ludus.errors import ConfigError, EnvironmentFailed, LudusError, WorkerLost, describe
from ludus.launch.places import make_client
from ludus.models.load import load_model, load_tokenizer, resolve_device, resolve_dtype
from ludus.models.tiny import make_tiny
from ludus.rollout import tool_calls
from ludus.rollout.arena import Arena, limits_from
from ludus.rollout.chat import Chat
from ludus.rollout.speaker import Speaker
from ludus.store.run_folder import RunFolder
from ludus.types import Observation, Task
from ludus.weights.channel import Channel

CORPUS_SESSIONS = 24
"""Sessions per environment whose text the tokenizer of `tiny` is trained on."""
CORPUS_S = 20.0
"""A session that takes longer has said enough."""
START_TRIES = 3


@dataclass(frozen=True, slots=True)
class Parts:
    """What every kind of run has: training, cloning, evaluating."""

    config: RunConfig
    environments: Mapping[str, Described]
    client: Client
    tokenizer: PreTrainedTokenizerBase
    chat: Chat
    model_folder: str
    device: torch.device
    dtype: torch.dtype
    probe_ids: list[int]
    """A real first prompt, long enough to go through every layer's attention."""

    def load_model(self) -> PreTrainedModel:
        return load_model(self.model_folder, device=self.device, dtype=self.dtype)

    @property
    def probe_tolerance(self) -> float:
        return self.config.pipeline.probe_tolerance or (1e-3 if self.dtype == torch.float32 else 0.2)

    @property
    def max_turns(self) -> dict[str, int]:
        """The run file's word, else the environment's own."""
        chosen = {
            name: self.config.environments[name].max_turns or e.max_turns for name, e in self.environments.items()
        }
        return {name: turns for name, turns in chosen.items() if turns}

    async def tasks(self, split: str) -> dict[str, list[Task]]:
        return {name: await self.client.tasks(name, split) for name in self.environments}


async def make_parts(config: RunConfig, *, folder: Path) -> Parts:
    """`folder` is where `tiny` is written when it is asked for, and what the run's own workers say."""
    client = await make_client(config, folder=folder)
    try:
        return await _parts_around(client, config, folder=folder)
    except BaseException:
        await client.close()
        raise


async def _parts_around(client: Client, config: RunConfig, *, folder: Path) -> Parts:
    environments = client.environments()
    device = resolve_device(config.model.device)
    model_folder = config.model.name
    if model_folder == "tiny":
        corpus = [text async for text in _corpus(client, environments)]
        model_folder = str(make_tiny(folder / "tiny", corpus=corpus, seed=config.seed))
    tokenizer = load_tokenizer(model_folder)
    chat = Chat(tokenizer, tool_format=config.model.tool_format, chat_template=config.model.chat_template)
    dtype = resolve_dtype(config.model.dtype, device=device)
    first = [await _first_observation(client, name, limit_s=config.rollout.turn_timeout_s) for name in environments]
    for observation in first:
        chat.check_tools(observation.tools or ())
    probe_ids = chat.transcript().start(first[0].messages, first[0].tools or ())
    return Parts(config, environments, client, tokenizer, chat, model_folder, device, dtype, probe_ids)


@contextmanager
def beginning(folder: RunFolder) -> Iterator[None]:
    """A new run that fails before it has begun leaves its name free for the next try."""
    try:
        yield
    except BaseException:
        if folder.resumed_at is None:
            folder.config_file.unlink(missing_ok=True)
        raise


def make_arena(parts: Parts, speaker: Speaker, *, temperature: float | None = None) -> Arena:
    limits = limits_from(parts.config, temperature=temperature)
    return Arena(parts.client, speaker, parts.chat, limits, max_turns=parts.max_turns)


def make_embedded_engine(parts: Parts, *, channel: Channel) -> EmbeddedEngine:
    config = parts.config
    return EmbeddedEngine(
        parts.load_model(), channel=channel, config=config.engine, max_tokens=config.rollout.max_tokens
    )


async def _first_observation(client: Client, name: str, *, limit_s: float) -> Observation:
    """What the environment says first, in one of several tries: one bad session must not keep a run from starting."""
    tasks = await client.tasks(name, "train")
    if not tasks:
        raise ConfigError(f"environment {name!r} has no tasks in its train split; nothing could be drawn from it")
    cause = ""
    for number in range(START_TRIES):
        try:
            async with opened(client, tasks[number % len(tasks)], seed=number, timeout_s=limit_s) as session:
                async with asyncio.timeout(limit_s):
                    return await session.start()
        except (EnvironmentFailed, WorkerLost, TimeoutError) as error:
            cause = describe(error)
    raise EnvironmentFailed(
        f"environment {name!r} could not be started in {START_TRIES} tries; the latest cause was: {cause}. "
        f"`ludus env check {name}` plays it without a model."
    )


@asynccontextmanager
async def opened(client: Client, task: Task, *, seed: int, timeout_s: float) -> AsyncIterator[ClientSession]:
    session = await client.open(task, seed=seed, timeout_s=timeout_s)
    try:
        yield session
    finally:
        await session.close()


async def _corpus(client: Client, environments: Mapping[str, Described]) -> AsyncIterator[str]:
    """What is said in these environments: the tokenizer of `tiny` is trained on it, so that prompts are short."""
    for name, environment in environments.items():
        tasks = (await client.tasks(name, "train"))[:CORPUS_SESSIONS]
        max_turns = environment.max_turns or 8
        for texts in await asyncio.gather(*(_played(client, task, max_turns=max_turns) for task in tasks)):
            for text in texts:
                yield text


async def _played(client: Client, task: Task, *, max_turns: int) -> list[str]:
    rng, texts = random.Random(task.id), list[str]()
    try:
        async with opened(client, task, seed=0, timeout_s=CORPUS_S) as session, asyncio.timeout(CORPUS_S):
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
        pass  # no solver, or it failed: what was said until then is enough for a tokenizer
    return texts


def _texts(observation: Observation) -> Iterator[str]:
    yield from (message.content for message in observation.messages)
    for tool in observation.tools or ():
        yield f"{tool.name}({', '.join(tool.parameters.get('properties', {}))}): {tool.description}"
