"""Who plays where no trainer is: a model of ours, one behind an endpoint, an environment's own solver. Promise: whoever cannot speak is
found out at the start, before a session is played."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from ludus.config import RunConfig
from ludus.engines.chat_server import ChatServer
from ludus.engines.engine import Engine
from ludus.engines.server import ServerEngine
from ludus.errors import EngineLost
from ludus.launch.context import (
    Stage,
    make_embedded_engine,
    make_local_player,
    make_parts,
    make_stage,
    patiently,
)
from ludus.rollout.player import Player
from ludus.rollout.sampler import ChatSampler, PolicySampler, SolverSampler
from ludus.types import Sampling, Trajectory
from ludus.weights.memory import MemoryChannel

PROBE = Sampling(max_tokens=1, temperature=0.0)
PATIENCE = 8
"""Sessions in a row that could not reach their model: then it is gone, and so would be all that are left."""


@dataclass(frozen=True, slots=True)
class NamedPlayer:
    stage: Stage
    player: Player
    name: str
    """The model's, as people know it."""
    in_tokens: bool
    """Whether its trajectories hold the tokens that were sampled."""


async def make_player(config: RunConfig, *, folder: Path, split: str, closing: AsyncExitStack) -> NamedPlayer:
    """The run file's model; what was opened for it is closed with `closing`."""
    kind = config.engine.kind
    if kind == "chat":
        return await _outside(config, folder=folder, split=split, closing=closing)
    parts = await make_parts(config, folder=folder, split=split)
    closing.push_async_callback(parts.client.close)
    engine: Engine
    if kind == "server":  # model.name is our tokenizer; servers name models as they like
        server = ServerEngine(
            config.engine.url, model=config.engine.model, max_running=config.engine.sized(on_gpu=False).max_running
        )
        closing.push_async_callback(server.close)
        probing = server.generate(parts.probe_ids, sampling=PROBE, session_id="probe")
        await patiently(probing, what=f"the first word of {config.engine.url}")
        engine, name = server, await server.model_name()
    else:
        engine, name = make_embedded_engine(parts, channel=MemoryChannel(), trains=False), config.model.name
        closing.push_async_callback(engine.close)
    return NamedPlayer(parts, make_local_player(parts, PolicySampler(engine)), name, in_tokens=True)


async def make_solver(config: RunConfig, *, folder: Path, split: str, closing: AsyncExitStack) -> NamedPlayer:
    """The environments' own solvers, with the run file's share of mistakes. No model is loaded."""
    stage = await make_stage(config, folder=folder, split=split)
    closing.push_async_callback(stage.client.close)
    player = make_local_player(stage, SolverSampler(mistakes=config.sft.mistakes))
    return NamedPlayer(stage, player, "solver", in_tokens=False)


async def _outside(config: RunConfig, *, folder: Path, split: str, closing: AsyncExitStack) -> NamedPlayer:
    stage = await make_stage(config, folder=folder, split=split)
    closing.push_async_callback(stage.client.close)
    engine = ChatServer(
        config.engine.url, model=config.engine.model, max_running=config.engine.sized(on_gpu=False).max_running
    )
    closing.push_async_callback(engine.close)
    first = next(iter(stage.first.values()))
    probing = engine.answer(first.messages, tools=first.tools or (), sampling=PROBE, session_id="probe")
    await patiently(probing, what=f"the first word of {config.engine.url}")
    player = make_local_player(stage, ChatSampler(engine))
    return NamedPlayer(stage, player, await engine.model_name(), in_tokens=False)


class Watch:
    """Told of every trajectory; raises EngineLost when too many in a row could not reach their model."""

    def __init__(self) -> None:
        self._lost = 0

    def __call__(self, trajectory: Trajectory) -> None:
        self._lost = self._lost + 1 if trajectory.failure.startswith(f"{EngineLost.__name__}:") else 0
        if self._lost >= PATIENCE:
            raise EngineLost(
                f"{self._lost} sessions in a row lost their model, the latest by {trajectory.failure}\nWhat is finished is kept: "
                "run the same command again, and it goes on from here."
            )
