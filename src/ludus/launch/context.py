"""A run file becomes parts: environments, model, chat. Whatever the run asks for and a part cannot do is refused here, at the start."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ludus.config import RunConfig
from ludus.controller.client.client import Client, ClientSession
from ludus.controller.records import Described
from ludus.engines.embedded import EmbeddedEngine
from ludus.errors import ConfigError, EnvironmentFailed, LudusError, WorkerLost, describe
from ludus.launch.devices import Devices, devices_of, engine_config
from ludus.launch.environments import make_client
from ludus.models.loading.load import load_model, load_tokenizer, resolve_dtype
from ludus.models.loading.tiny import make_tiny
from ludus.rollout import tool_calls
from ludus.rollout.chat import Chat
from ludus.rollout.context import RolloutContext
from ludus.rollout.player import LocalPlayer
from ludus.rollout.sampler import Sampler
from ludus.store.run_folder import RunFolder
from ludus.types import Observation, Task
from ludus.weights.channel import Channel

CORPUS_SESSIONS = 24
"""Sessions per environment whose text the tokenizer of `tiny` is trained on."""
CORPUS_S = 20.0
"""A session that takes longer has said enough."""
PATIENCE_S = 30.0
"""What takes longer than this before the run begins is named while it is waited for."""
START_TRIES = 3
SPLITS = ("train", "dev", "test")
"""Named to whoever asks for another."""
_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stage:
    """What every kind of run has, with a model or without: its environments, started once, and the client that reaches them."""

    config: RunConfig
    environments: Mapping[str, Described]
    client: Client
    first: Mapping[str, Observation]
    """What each environment said first."""

    @property
    def max_turns(self) -> dict[str, int]:
        """The run file's word, else the environment's own."""
        chosen = {
            name: self.config.environments[name].max_turns or e.max_turns for name, e in self.environments.items()
        }
        return {name: turns for name, turns in chosen.items() if turns}

    async def tasks(self, split: str) -> dict[str, list[Task]]:
        limit_s = self.config.rollout.session_timeout_s
        return {name: await _tasks(self.client, name, split=split, limit_s=limit_s) for name in self.environments}


@dataclass(frozen=True, slots=True)
class Parts(Stage):
    """A run with a model whose tokens we know: training, cloning, evaluating."""

    tokenizer: PreTrainedTokenizerBase
    chat: Chat
    model_folder: str
    devices: Devices
    dtype: torch.dtype
    probe_ids: list[int]
    """A real first prompt, long enough to go through every layer's attention."""

    def load_model(self, *, device: torch.device | None = None) -> PreTrainedModel:
        """On the trainer's device unless another is named."""
        return load_model(self.model_folder, device=device or self.devices.trainer, dtype=self.dtype)

    @property
    def probe_tolerance(self) -> float:
        return self.config.pipeline.probe_tolerance or (1e-3 if self.dtype == torch.float32 else 0.25)


async def make_stage(config: RunConfig, *, folder: Path, split: str = "train") -> Stage:
    """The environments, each with a session of `split` started. What the run's own workers say goes to `folder`."""
    client = await make_client(config, folder=folder)
    try:
        environments = client.environments()
        first = {name: await _first_observation(client, name, split=split, config=config) for name in environments}
        return Stage(config, environments, client, first)
    except BaseException:
        await client.close()
        raise


async def make_parts(config: RunConfig, *, folder: Path, split: str = "train") -> Parts:
    """`folder` is also where `tiny` is written when it is asked for."""
    stage = await make_stage(config, folder=folder, split=split)
    try:
        return await _parts_on(stage, folder=folder)
    except BaseException:
        await stage.client.close()
        raise


async def _parts_on(stage: Stage, *, folder: Path) -> Parts:
    config, client, environments = stage.config, stage.client, stage.environments
    devices = devices_of(config)
    model_folder = config.model.name
    if model_folder == "tiny":
        max_chars = config.rollout.max_observation_chars
        corpus = [text[:max_chars] async for text in _corpus(client, environments)]
        model_folder = str(make_tiny(folder / "tiny", corpus=corpus, seed=config.seed))
    tokenizer = load_tokenizer(model_folder)
    chat = make_chat(config, tokenizer)
    dtype = resolve_dtype(config.model.dtype, device=devices.engine)
    for observation in stage.first.values():
        chat.check_tools(observation.tools or ())
    probe = next(iter(stage.first.values()))
    probe_ids = chat.transcript().start(probe.messages, probe.tools or ())
    return Parts(config, environments, client, stage.first, tokenizer, chat, model_folder, devices, dtype, probe_ids)


@contextmanager
def beginning(folder: RunFolder) -> Iterator[None]:
    """A new run that fails before it has begun leaves its name free for the next try."""
    try:
        yield
    except BaseException:
        if folder.resumed_at is None:
            folder.config_file.unlink(missing_ok=True)
        raise


def make_chat(config: RunConfig, tokenizer: PreTrainedTokenizerBase) -> Chat:
    return Chat(tokenizer, tool_format=config.model.tool_format, chat_template=config.model.chat_template)


def make_local_player(stage: Stage, sampler: Sampler) -> LocalPlayer:
    chat = stage.chat if isinstance(stage, Parts) else None
    return LocalPlayer(make_rollout_context(stage.config, stage.client, sampler, chat, max_turns=stage.max_turns))


def make_rollout_context(
    config: RunConfig, client: Client, sampler: Sampler, chat: Chat | None, *, max_turns: Mapping[str, int]
) -> RolloutContext:
    return RolloutContext(client, sampler, chat, config.rollout, max_turns, config.speakers.draw, config.seed)


def make_embedded_engine(parts: Parts, *, channel: Channel, trains: bool = True) -> EmbeddedEngine:
    """`trains`: a trainer is to have its part of the device's memory."""
    config, devices = parts.config, parts.devices
    return EmbeddedEngine(
        parts.load_model(device=devices.engine),
        channel=channel,
        config=engine_config(config, devices=devices, trains=trains),
        max_tokens=config.rollout.max_tokens,
    )


async def _tasks(client: Client, name: str, *, split: str, limit_s: float) -> list[Task]:
    """Author code that reads or makes them may take long, and may hang."""
    what = f"environment {name!r}: tasks({split!r})"
    try:
        async with asyncio.timeout(limit_s):
            return await patiently(client.tasks(name, split), what=what)
    except TimeoutError:
        raise EnvironmentFailed(f"{what} did not return within {limit_s:g} s (rollout.session_timeout_s)") from None


async def patiently(asking: Awaitable[T], *, what: str) -> T:
    """Before the run has begun nothing moves on the screen: what takes long is named there."""
    work = asyncio.ensure_future(asking)
    try:
        if not (await asyncio.wait([work], timeout=PATIENCE_S))[0]:
            _log.warning("%s takes more than %g s", what, PATIENCE_S)
        return await work
    finally:
        work.cancel()


async def _first_observation(client: Client, name: str, *, split: str, config: RunConfig) -> Observation:
    """What the environment says first, in one of several tries: one bad session must not keep a run from starting."""
    limit_s = config.rollout.turn_timeout_s
    tasks = await _tasks(client, name, split=split, limit_s=config.rollout.session_timeout_s)
    if not tasks:
        others = [other for other in SPLITS if other != split and await client.tasks(name, other)]
        raise ConfigError(
            f"environment {name!r} has no tasks in its {split} split; nothing could be drawn from it. "
            f"Splits with tasks: {', '.join(others) or 'none'}."
        )
    cause = ""
    for number in range(START_TRIES):
        try:
            async with opened(client, tasks[number % len(tasks)], seed=number, timeout_s=limit_s) as session:
                async with asyncio.timeout(limit_s):
                    return await session.start()
        except TimeoutError:
            cause = f"it did not answer within {limit_s:g} s (rollout.turn_timeout_s)"
        except (EnvironmentFailed, WorkerLost) as error:
            cause = describe(error)
    raise EnvironmentFailed(
        f"environment {name!r} could not be started in {START_TRIES} tries; the latest cause was: {cause}. "
        f"`ludus env check {config.environments[name].source or name}` plays it without a model."
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
