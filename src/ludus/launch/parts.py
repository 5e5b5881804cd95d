"""A run file becomes parts: environments, model, chat. Whatever the run asks for and a part cannot do is refused here, at the start."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ludus.config import RunConfig
from ludus.controller.local import LocalClient
from ludus.engines.embedded import EmbeddedEngine
from ludus.environments import registry
from ludus.environments.environment import Environment
from ludus.errors import ConfigError, LudusError
from ludus.models.load import load_model, load_tokenizer, resolve_device, resolve_dtype
from ludus.models.tiny import make_tiny
from ludus.rollout import tool_calls
from ludus.rollout.arena import Arena, limits_from
from ludus.rollout.chat import Chat
from ludus.rollout.speaker import Speaker
from ludus.types import Observation, Task
from ludus.weights.channel import Channel

CORPUS_SESSIONS = 24
"""Sessions per environment whose text the tokenizer of `tiny` is trained on."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What every kind of run has: training, cloning, evaluating."""

    config: RunConfig
    environments: Mapping[str, Environment]
    client: LocalClient
    tokenizer: PreTrainedTokenizerBase
    chat: Chat
    model_folder: str
    device: torch.device
    dtype: torch.dtype

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
    """`folder` is where `tiny` is written when it is asked for."""
    environments = make_environments(config)
    client = LocalClient(environments.values())
    device = resolve_device(config.model.device)
    model_folder = config.model.name
    if model_folder == "tiny":
        corpus = [text async for text in _corpus(client, environments)]
        model_folder = str(make_tiny(folder / "tiny", corpus=corpus, seed=config.seed))
    tokenizer = load_tokenizer(model_folder)
    chat = Chat(tokenizer, tool_format=config.model.tool_format, chat_template=config.model.chat_template)
    dtype = resolve_dtype(config.model.dtype, device=device)
    return Parts(config, environments, client, tokenizer, chat, model_folder, device, dtype)


def make_environments(config: RunConfig) -> dict[str, Environment]:
    if not config.environments:
        known = ", ".join(registry.names())
        raise ConfigError(f"the run has no environments; add a section such as [environments.guess]. Known: {known}.")
    return {
        name: registry.make(name, source=section.source, options=section.options)
        for name, section in config.environments.items()
    }


def make_arena(parts: Parts, speaker: Speaker, *, temperature: float | None = None) -> Arena:
    limits = limits_from(parts.config, temperature=temperature)
    return Arena(parts.client, speaker, parts.chat, limits, max_turns=parts.max_turns)


def make_embedded_engine(parts: Parts, *, channel: Channel) -> EmbeddedEngine:
    config = parts.config
    return EmbeddedEngine(
        parts.load_model(), channel=channel, config=config.engine, max_tokens=config.rollout.max_tokens
    )


async def probe_prompt(parts: Parts, task: Task) -> list[int]:
    """A real first prompt, long enough to go through every layer's attention."""
    session = await parts.client.open(task, seed=0)
    try:
        observation = await session.start()
        return parts.chat.transcript().start(observation.messages, observation.tools or ())
    finally:
        await session.close()


async def _corpus(client: LocalClient, environments: Mapping[str, Environment]) -> AsyncIterator[str]:
    """What is said in these environments: the tokenizer of `tiny` is trained on it, so that prompts are short."""
    for name, environment in environments.items():
        for task in (await client.tasks(name, "train"))[:CORPUS_SESSIONS]:
            async for text in _played(client, task, max_turns=environment.max_turns or 8):
                yield text


async def _played(client: LocalClient, task: Task, *, max_turns: int) -> AsyncIterator[str]:
    session, rng = await client.open(task, seed=0), random.Random(task.id)
    try:
        observation = await session.start()
        for turn in range(max_turns + 1):
            for text in _texts(observation):
                yield text
            if observation.done or turn == max_turns:
                return
            action = await session.solve(mistakes=0.5, rng=rng)
            yield tool_calls.write(action, format="hermes")
            observation = await session.act(action)
    except LudusError:
        return  # no solver, or it failed: what was said until then is enough for a tokenizer
    finally:
        await session.close()


def _texts(observation: Observation) -> Iterator[str]:
    yield from (message.content for message in observation.messages)
    for tool in observation.tools or ():
        yield f"{tool.name}({', '.join(tool.parameters.get('properties', {}))}): {tool.description}"
