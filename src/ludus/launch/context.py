"""The context of a run: its environments, its tokenizer and its devices.

A request that a part of the run cannot honour is refused here, at the start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ludus.config import RunConfig
from ludus.controller.client.client import Client
from ludus.controller.records import Described
from ludus.errors import ConfigError, EnvironmentFailed, WorkerLost, describe
from ludus.launch.corpus import corpus, opened
from ludus.launch.devices import Devices, devices_of
from ludus.launch.environments import make_client
from ludus.models.loading.load import load_model, load_tokenizer, resolve_dtype
from ludus.models.loading.tiny import make_tiny
from ludus.rollout.chat import Chat
from ludus.rollout.context import RolloutContext
from ludus.rollout.player import LocalPlayer
from ludus.rollout.sampler import Sampler
from ludus.store.run_folder import RunFolder
from ludus.types import Observation, Task

PATIENCE_S = 30.0
"""A preparation that takes longer than this is named on the screen."""
START_TRIES = 3
SPLITS = ("train", "dev", "test")
"""Listed in the error for a split without tasks."""
_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunContext:
    """What every kind of run has: environments, each started once, and their client."""

    config: RunConfig
    environments: Mapping[str, Described]
    client: Client
    first: Mapping[str, Observation]
    """The first observation of each environment."""
    chat: Chat | None = None
    """None where sessions answer in text."""

    @property
    def max_turns(self) -> dict[str, int]:
        """The run file's limit by environment, else the environment's own."""
        sections = self.config.environments
        chosen = {name: sections[name].max_turns or each.max_turns for name, each in self.environments.items()}
        return {name: turns for name, turns in chosen.items() if turns}

    async def tasks(self, split: str) -> dict[str, list[Task]]:
        limit_s = self.config.rollout.session_timeout_s
        return {name: await _tasks(self.client, name, split=split, limit_s=limit_s) for name in self.environments}

    def player(self, sampler: Sampler) -> LocalPlayer:
        """A player in this process."""
        return make_player(self.config, client=self.client, sampler=sampler, chat=self.chat, max_turns=self.max_turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelContext(RunContext):
    """A run with a model whose tokens are known: training, cloning, evaluating."""

    chat: Chat
    tokenizer: PreTrainedTokenizerBase
    model_folder: str
    devices: Devices
    dtype: torch.dtype
    probe_ids: list[int]
    """A real first prompt, long enough to go through every layer's attention."""

    def load_model(self) -> PreTrainedModel:
        """The run's model, on the trainer's device."""
        return load_model(self.model_folder, device=self.devices.trainer, dtype=self.dtype)

    @property
    def probe_tolerance(self) -> float:
        return self.config.pipeline.probe_tolerance or (1e-3 if self.dtype == torch.float32 else 0.25)


async def make_run_context(config: RunConfig, *, folder: Path, split: str = "train") -> RunContext:
    """Start a session of `split` in each environment. Logs of the run's workers go to `folder`."""
    client = await make_client(config, folder=folder)
    try:
        environments = client.environments()
        first = {name: await _first_observation(client, name, split=split, config=config) for name in environments}
        return RunContext(config, environments, client, first)
    except BaseException:
        await client.close()
        raise


async def make_model_context(config: RunConfig, *, folder: Path, split: str = "train") -> ModelContext:
    """As `make_run_context`, with the model's tokenizer. `tiny` is written to `folder`."""
    run = await make_run_context(config, folder=folder, split=split)
    try:
        devices = devices_of(config)
        model_folder = config.model.name
        if model_folder == "tiny":
            max_chars = config.rollout.max_observation_chars
            texts = [text[:max_chars] async for text in corpus(run.client, run.environments)]
            model_folder = str(make_tiny(folder / "tiny", corpus=texts, seed=config.seed))
        tokenizer = load_tokenizer(model_folder)
        chat = make_chat(config, tokenizer)
        dtype = resolve_dtype(config.model.dtype, device=devices.engine)
        for observation in run.first.values():
            chat.check_tools(observation.tools or ())
        probe = next(iter(run.first.values()))
        return ModelContext(
            *(config, run.environments, run.client, run.first),
            chat=chat,
            tokenizer=tokenizer,
            model_folder=model_folder,
            devices=devices,
            dtype=dtype,
            probe_ids=chat.transcript().start(probe.messages, probe.tools or ()),
        )
    except BaseException:
        await run.client.close()
        raise


@contextmanager
def preparing(folder: RunFolder) -> Iterator[None]:
    """Free the name of a new run that fails before it has begun."""
    try:
        yield
    except BaseException:
        if folder.resumed_at is None:
            folder.config_file.unlink(missing_ok=True)
        raise


def make_player(
    config: RunConfig, *, client: Client, sampler: Sampler, chat: Chat | None, max_turns: Mapping[str, int]
) -> LocalPlayer:
    draw = config.cross_policy.draw
    context = RolloutContext(client, sampler, chat, config.rollout, max_turns=max_turns, draw=draw, seed=config.seed)
    return LocalPlayer(context)


def make_chat(config: RunConfig, tokenizer: PreTrainedTokenizerBase) -> Chat:
    return Chat(tokenizer, tool_format=config.model.tool_format, chat_template=config.model.chat_template)


async def patiently(work: Awaitable[T], *, what: str) -> T:
    """Await `work`, and name it on the screen once it takes long: nothing else moves there yet."""
    task = asyncio.ensure_future(work)
    try:
        if not (await asyncio.wait([task], timeout=PATIENCE_S))[0]:
            _log.warning("%s takes more than %g s", what, PATIENCE_S)
        return await task
    finally:
        task.cancel()


async def _tasks(client: Client, name: str, *, split: str, limit_s: float) -> list[Task]:
    what = f"environment {name!r}: tasks({split!r})"
    try:
        async with asyncio.timeout(limit_s):
            return await patiently(client.tasks(name, split), what=what)
    except TimeoutError:
        raise EnvironmentFailed(f"{what} did not return within {limit_s:g} s (rollout.session_timeout_s)") from None


async def _first_observation(client: Client, name: str, *, split: str, config: RunConfig) -> Observation:
    """Try a few sessions: one bad session must not keep a run from starting."""
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
