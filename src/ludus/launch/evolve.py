"""Iterated cloning of one's own successes (AgentEvol, 2406.04151): play, keep what succeeded, clone it, play again.

    round 1..n    play     the policy plays train tasks, `evolve.num_trajectories` of them
                  keep     those with a reward of at least `evolve.min_reward`, together with what earlier rounds kept
                  clone    into the model the run started with, as [sft] says: the policy of the next round

Cloning always begins at the start model, so that a round's model depends on what was kept and on nothing else. A round that keeps nothing
new leaves the policy as it is. Left out: weighing by reward, and the published first data set of experts (`ludus sft` first stands for it).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from ludus.config import RunConfig
from ludus.errors import ConfigError
from ludus.launch.collect import plan_attempts, play_all
from ludus.launch.context import Parts, beginning, make_arena, make_embedded_engine, make_parts
from ludus.launch.devices import make_current, naming_loss
from ludus.rollout.speaker import PolicySpeaker
from ludus.store.recorder import Listener, Recorder
from ludus.store.run_folder import RunFolder
from ludus.trackers.tracker import trackers_of
from ludus.trainer.lora import export, merged_tensors
from ludus.trainer.sft import clone
from ludus.types import Sequence, Trajectory
from ludus.weights.memory import MemoryChannel


async def evolve(config: RunConfig, *, listeners: Iterable[Listener] = ()) -> dict[str, Any]:
    """All rounds; returns the success of each round's policy while it played, and where the last clone is."""
    if config.engine.kind != "embedded":
        raise ConfigError(
            f"engine.kind is {config.engine.kind!r}, which cannot load the next round's model; `ludus evolve` needs 'embedded'. "
            "`ludus collect --model URL` and `ludus sft` clone what a server says"
        )
    folder = RunFolder.create(config)
    listeners = [*trackers_of(config.store, folder), *listeners]
    with Recorder(folder, trajectories=config.store.trajectories, listeners=listeners) as recorder:
        with beginning(folder):
            parts = await make_parts(config, folder=folder.path)
        try:
            evolution = _Evolution(parts, recorder=recorder)
            try:
                for number in range(config.evolve.rounds):
                    await evolution.round(number)
            finally:
                await evolution.engine.close()
        finally:
            await parts.client.close()
        whole = export(folder.export, model=evolution.model, tokenizer=parts.tokenizer)
        recorder.event("finished", version=config.evolve.rounds)
    return {"export": str(whole), "success": evolution.success, "kept": len(evolution.kept)}


class _Evolution:
    def __init__(self, parts: Parts, *, recorder: Recorder) -> None:
        self.parts, self.config, self.recorder = parts, parts.config, recorder
        self.channel = MemoryChannel()
        self.engine = make_embedded_engine(parts, channel=self.channel)
        self.model = parts.load_model()
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
                f"nothing to clone: of {len(played)} trajectories none had a reward of at least {self.config.evolve.min_reward:g} "
                "(evolve.min_reward). Warm the model up first (`ludus sft`), or play more (evolve.num_trajectories)."
            )
        if new:
            await asyncio.to_thread(self._clone)
            self.channel.publish(number + 1, merged_tensors(self.model))
            await self.engine.load(number + 1)

    async def _play(self, number: int) -> list[Trajectory]:
        arena = make_arena(self.parts, PolicySpeaker(self.engine))
        attempts = plan_attempts(
            await self.parts.tasks("train"),
            config=self.config,
            num=self.config.evolve.num_trajectories,
            prefix="evolve",
            number=number,
        )

        def record(trajectory: Trajectory) -> None:
            self.recorder.trajectory(trajectory, step=number, group_id=trajectory.task.id)

        return await play_all(attempts, arena=arena, on_trajectory=record)

    def _clone(self) -> None:
        """The tokens that were sampled, as they were sampled."""
        sequences: list[Sequence] = [sequence for trajectory in self.kept for sequence in trajectory.sequences]
        self.model = self.parts.load_model()
        make_current(self.model.device)
        config = self.config
        with naming_loss(self.model.device):
            clone(self.model, sequences, config=config.sft, trainer=config.trainer, lora=config.lora, seed=config.seed)
