"""The model that `ludus eval` and `ludus collect` play: ours, one behind an endpoint, or the environments' solvers.

Promise: a model that cannot answer is found at the start, before a session is played.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from ludus.config import RunConfig
from ludus.engines.chat_server import ChatServer
from ludus.engines.server import ServerEngine
from ludus.errors import EngineLost
from ludus.launch.context import RunContext, make_model_context, make_run_context, patiently
from ludus.launch.placement.here import Here
from ludus.launch.policies import PROBE
from ludus.rollout.player import Player
from ludus.rollout.sampler import ChatSampler, SolverSampler
from ludus.types import Trajectory

MAX_LOST = 8
"""Sessions in a row that could not reach their model before the command gives up."""


@dataclass(frozen=True, slots=True)
class Subject:
    context: RunContext
    player: Player
    name: str
    """The model's name for people."""
    in_tokens: bool
    """Whether trajectories hold the sampled tokens."""


async def make_subject(config: RunConfig, *, folder: Path, split: str, closing: AsyncExitStack) -> Subject:
    """The run file's model. `closing` closes what was opened for it."""
    if config.engine.kind == "chat":
        return await _chat(config, folder=folder, split=split, closing=closing)
    context = await make_model_context(config, folder=folder, split=split)
    closing.push_async_callback(context.client.close)
    placement = Here(context)
    closing.push_async_callback(placement.close)
    engine = await placement.engine(trains=False)
    name = config.model.name
    if isinstance(engine, ServerEngine):  # model.name is our tokenizer; servers name models as they like
        probing = engine.generate(context.probe_ids, sampling=PROBE, session_id="probe")
        await patiently(probing, what=f"the first answer of {config.engine.url}")
        name = await engine.model_name()
    return Subject(context, await placement.player(engine), name, in_tokens=True)


async def make_solver(config: RunConfig, *, folder: Path, split: str, closing: AsyncExitStack) -> Subject:
    """The environments' own solvers, with the run file's share of mistakes. No model is loaded."""
    context = await make_run_context(config, folder=folder, split=split)
    closing.push_async_callback(context.client.close)
    player = context.player(SolverSampler(mistakes=config.sft.mistakes))
    return Subject(context, player, "solver", in_tokens=False)


async def _chat(config: RunConfig, *, folder: Path, split: str, closing: AsyncExitStack) -> Subject:
    context = await make_run_context(config, folder=folder, split=split)
    closing.push_async_callback(context.client.close)
    settings = config.engine
    engine = ChatServer(settings.url, model=settings.model, max_running=settings.sized(on_gpu=False).max_running)
    closing.push_async_callback(engine.close)
    first = next(iter(context.first.values()))
    probing = engine.answer(first.messages, tools=first.tools or (), sampling=PROBE, session_id="probe")
    await patiently(probing, what=f"the first answer of {settings.url}")
    return Subject(context, context.player(ChatSampler(engine)), await engine.model_name(), in_tokens=False)


class LossWatch:
    """Raises EngineLost when too many sessions in a row could not reach their model."""

    def __init__(self) -> None:
        self._lost = 0

    def __call__(self, trajectory: Trajectory) -> None:
        self._lost = self._lost + 1 if trajectory.failure.startswith(f"{EngineLost.__name__}:") else 0
        if self._lost >= MAX_LOST:
            raise EngineLost(
                f"{self._lost} sessions in a row lost their model, the latest by {trajectory.failure}\n"
                "Finished sessions are kept: run the same command again to resume."
            )
