"""Iterated cloning of the policy's own successes (AgentEvol, 2406.04151): play, keep successes, clone, repeat.

    round 1..n    play     the policy plays `evolve.num_trajectories` train tasks
                  keep     trajectories with a reward of at least `evolve.min_reward`, with those of earlier rounds
                  clone    into the model the run started with, as [sft] says: the policy of the next round

Cloning always starts from the first model, so that a round's model depends on the kept trajectories
alone. A round that keeps nothing new leaves the policy unchanged. Left out: weighting by reward, and the
published first data set of experts (`ludus sft` first takes its place).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

from ludus.config import RunConfig
from ludus.engines.engine import Engine
from ludus.errors import ConfigError
from ludus.launch.collect import plan_orders
from ludus.launch.context import ModelContext, make_model_context, preparing
from ludus.launch.engines import require_loads
from ludus.launch.placement.placement import Placement, place
from ludus.rollout.player import Player, play_all
from ludus.store.recorder import Listener, Recorder
from ludus.store.run_folder import RunFolder
from ludus.trackers.tracker import trackers_of
from ludus.trainer.sft import clone
from ludus.trainer.trainer import Trainer
from ludus.types import Sequence, Trajectory
from ludus.weights.channel import Snapshot


async def evolve(config: RunConfig, *, listeners: Iterable[Listener] = ()) -> dict[str, Any]:
    """Play all rounds; return the success of each round's policy, and where the last clone is."""
    instead = "`ludus collect --model URL` and `ludus sft` clone the answers of a server"
    require_loads(config.engine, command="`ludus evolve`", instead=instead)
    folder = RunFolder.create(config)
    listeners = [*trackers_of(config.store, folder), *listeners]
    with Recorder(folder, trajectories=config.store.trajectories, listeners=listeners) as recorder:
        async with AsyncExitStack() as closing:
            with preparing(folder):
                context = await make_model_context(config, folder=folder.path)
            closing.push_async_callback(context.client.close)
            placement = await place(context, folder=folder.path)
            closing.push_async_callback(placement.close)
            engine = await placement.engine(trains=True)
            player = await placement.player(engine)
            evolution = _Evolution(context, placement=placement, engine=engine, player=player, recorder=recorder)
            for number in range(config.evolve.rounds):
                await evolution.round(number)
            assert evolution.trainer is not None, "the first round clones or fails"
            export = await evolution.trainer.export(folder.export)
        recorder.event("finished", version=config.evolve.rounds)
    return {"export": str(export), "success": evolution.success, "kept": len(evolution.kept)}


class _Evolution:
    def __init__(
        self, context: ModelContext, *, placement: Placement, engine: Engine, player: Player, recorder: Recorder
    ) -> None:
        self.context, self.config, self.recorder = context, context.config, recorder
        self.placement, self.engine, self.player = placement, engine, player
        self.trainer: Trainer | None = None
        self.kept: list[Trajectory] = []
        self.success: list[float] = []

    async def round(self, number: int) -> None:
        played = await self._play(number)
        new = [t for t in played if t.stop.scored and t.reward >= self.config.evolve.min_reward]
        self.kept += new
        self.success.append(sum(t.success for t in played) / len(played))
        self.recorder.event("round", round=number, played=len(played), kept=len(new), success=self.success[-1])
        if not self.kept:
            raise ConfigError(
                f"nothing to clone: of {len(played)} trajectories none had a reward of at least "
                f"{self.config.evolve.min_reward:g} (evolve.min_reward). Warm the model up first (`ludus sft`), "
                "or play more (evolve.num_trajectories)."
            )
        if new:
            await self._clone(number)

    async def _play(self, number: int) -> list[Trajectory]:
        orders = plan_orders(
            await self.context.tasks("train"),
            config=self.config,
            num=self.config.evolve.num_trajectories,
            prefix="evolve",
            number=number,
        )

        def record(trajectory: Trajectory) -> None:
            self.recorder.trajectory(trajectory, step=number, group_id=trajectory.task.id)

        return await play_all(orders, player=self.player, on_trajectory=record)

    async def _clone(self, number: int) -> None:
        """Clone the sampled tokens into the first model, and load the result."""
        sequences: list[Sequence] = [sequence for trajectory in self.kept for sequence in trajectory.sequences]
        self.trainer = await self.placement.cloner()
        await clone(self.trainer, sequences, config=self.config.sft, seed=self.config.seed)
        tensors = self.trainer.source.fetch(await self.trainer.publish())
        # every cloner counts its versions from 0; the engine's versions are the rounds
        await self.engine.load(number + 1, source=Snapshot(number + 1, tensors))
