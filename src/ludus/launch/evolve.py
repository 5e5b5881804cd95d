"""Iterated cloning of the policy's own successes (AgentEvol, 2406.04151).

    round 1..n    play     the policy plays `evolve.num_trajectories` train tasks
                  keep     those with a reward of at least `evolve.min_reward`, and all kept before
                  clone    into the run's first model, as [sft] says: the policy of the next round

Cloning always starts from the first model, so that a round's model depends on the kept trajectories
alone. A round that keeps nothing new leaves the policy unchanged. Left out: weighting by reward,
and the published first data set of experts (`ludus sft` first takes its place).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ludus.config import RunConfig
from ludus.engines.engine import Engine
from ludus.errors import ConfigError
from ludus.launch.collect import plan_orders
from ludus.launch.context import ModelContext
from ludus.launch.engines import require_loads
from ludus.launch.placement.placement import placed
from ludus.rollout.player import Player, play_all
from ludus.store.recorder import Listener, Recorder
from ludus.store.run_folder import RunFolder
from ludus.trainer.sft import clone
from ludus.trainer.trainer import Trainer
from ludus.types import Trajectory
from ludus.weights.channel import Snapshot


async def evolve(config: RunConfig, *, listeners: Iterable[Listener] = ()) -> dict[str, Any]:
    """Play all rounds; return the success of each round's policy, and where the last clone is."""
    instead = "`ludus collect --model URL` and `ludus sft` clone the answers of a server"
    require_loads(config.engine, command="`ludus evolve`", instead=instead)
    kept, success, least = list[Trajectory](), list[float](), config.evolve.min_reward
    async with placed(config, RunFolder.create(config), listeners=listeners) as (recorder, context, placement):
        engine = await placement.engine(trains=True)
        player = await placement.player(engine)
        trainer: Trainer | None = None
        for number in range(config.evolve.rounds):
            played = await _play(number, context=context, player=player, recorder=recorder)
            new = [each for each in played if each.stop.scored and each.reward >= least]
            kept += new
            success.append(sum(each.success for each in played) / len(played))
            recorder.event("round", round=number, played=len(played), kept=len(new), success=success[-1])
            if not kept:
                raise ConfigError(
                    f"nothing to clone: of {len(played)} trajectories none had a reward of at least "
                    f"{least:g} (evolve.min_reward). Warm the model up first (`ludus sft`), "
                    "or play more (evolve.num_trajectories)."
                )
            if new:
                trainer = await placement.cloner()
                await _clone(kept, trainer=trainer, config=config, engine=engine, version=number + 1)
        assert trainer is not None, "the first round clones or fails"
        export = await trainer.export(recorder.folder.export)
        recorder.event("finished", version=config.evolve.rounds)
    return {"export": str(export), "success": success, "kept": len(kept)}


async def _play(number: int, *, context: ModelContext, player: Player, recorder: Recorder) -> list[Trajectory]:
    config, tasks = context.config, await context.tasks("train")
    orders = plan_orders(tasks, config=config, num=config.evolve.num_trajectories, prefix="evolve", number=number)

    def record(trajectory: Trajectory) -> None:
        recorder.trajectory(trajectory, step=number, group_id=trajectory.task.id)

    return await play_all(orders, player=player, on_trajectory=record)


async def _clone(kept: list[Trajectory], *, trainer: Trainer, config: RunConfig, engine: Engine, version: int) -> None:
    """Clone the sampled tokens into the trainer's model, and load the result as `version`."""
    sequences = [sequence for trajectory in kept for sequence in trajectory.sequences]
    await clone(trainer, sequences, config=config.sft, seed=config.seed)
    # every cloner counts its versions from 0; the engine's versions are the rounds
    await engine.load(version, source=Snapshot(version, trainer.source.fetch(await trainer.publish())))
