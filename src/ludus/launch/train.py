"""`ludus train`: roles become a training run."""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from ludus.algorithms import make_algorithm
from ludus.algorithms.soundness import doubts
from ludus.config import RunConfig
from ludus.engines.embedded import SWITCH_S
from ludus.engines.engine import Engine
from ludus.errors import CheckpointFailed
from ludus.garbage import rarely_collected
from ludus.launch.context import ModelContext, patiently, preparing
from ludus.launch.engines import require_loads
from ludus.launch.evaluate import evaluate_policy, held_out
from ludus.launch.placement.placement import placed
from ludus.launch.policies import Copies, Endpoints
from ludus.pipeline.feed import Feed
from ludus.pipeline.loop import Loop
from ludus.reports.report import write_report
from ludus.rollout.player import Player
from ludus.store.recorder import Listener, Recorder
from ludus.store.run_folder import RunFolder
from ludus.trainer.checkpoint import latest_checkpoint
from ludus.trainer.trainer import Trainer

EVALUATION = "evaluation"
"""The policy that plays held-out tasks: a copy, so that a result is of one version alone."""


async def train(
    config: RunConfig,
    *,
    resume: bool = False,
    listeners: Iterable[Listener] = (),
    on_loop: Callable[[Loop], None] | None = None,
) -> dict[str, Any]:
    """Train; return the evaluations before and after, and where the results are.

    `on_loop` gets the loop, so that the caller can stop it."""
    require_loads(config.engine, command="training", instead="`ludus eval` works with a server")
    # engine, trainer and sessions are threads of one interpreter, on a CPU too
    sys.setswitchinterval(SWITCH_S)
    checkpoint = _newest_checkpoint(config) if resume else None
    step = int(checkpoint.name.removeprefix("step-")) if checkpoint else 0
    folder = RunFolder.resume(config, step=step) if checkpoint else RunFolder.create(config)
    async with placed(config, folder, listeners=listeners) as (recorder, context, placement):
        with preparing(folder):
            trainer = await placement.trainer(on_event=_in_loop(recorder.event))
            engine = await placement.engine(trains=True)
            player = await patiently(placement.player(engine), what="starting the rollout processes")
            training = _Training(context, engine=engine, trainer=trainer, player=player, recorder=recorder)
            await training.prepare(checkpoint)
        with rarely_collected():
            return await training.run(on_loop)


class _Training:
    """A run whose roles are in place."""

    def __init__(
        self, context: ModelContext, *, engine: Engine, trainer: Trainer, player: Player, recorder: Recorder
    ) -> None:
        self.context, self.config, self.recorder = context, context.config, recorder
        self.engine, self.trainer, self.player = engine, trainer, player
        self.copies = Copies(self.config.cross_policy, engine=engine)
        self.last_report: dict[str, Any] | None = None

    async def prepare(self, checkpoint: Path | None) -> None:
        """Bring engine and trainer to the same version, and the loop to the checkpoint's state."""
        context, config = self.context, self.config
        if config.evaluation.every:
            await held_out(context)
        endpoints = Endpoints(config.cross_policy)
        try:
            await endpoints.probe(context)
        finally:
            await endpoints.close()
        restored = await self.trainer.restore(checkpoint) if checkpoint else None
        version, source = await self.trainer.publish(), self.trainer.source
        await self.engine.load(version, source=source)
        await self.engine.add_policy(EVALUATION, version=version, source=source)
        await self.copies.prepare(version=version, source=source, checkpoint=restored, first=context.load_model)
        self.loop = Loop(
            config,
            feed=Feed(
                await context.tasks("train"),
                weights={name: section.weight for name, section in config.environments.items()},
                seed=config.seed,
                rollout=config.rollout,
                curriculum=config.curriculum,
            ),
            player=self.player,
            engine=self.engine,
            trainer=self.trainer,
            algorithm=make_algorithm(config.algorithm),
            recorder=self.recorder,
            probe_ids=context.probe_ids,
            probe_tolerance=context.probe_tolerance,
            evaluate=self.evaluate,
            checkpoint=self.checkpoint,
            refresh=lambda version: self.copies.refresh(version, self.trainer.source),
        )
        if restored is not None:
            self.loop.restore(restored.state["loop"])

    async def run(self, on_loop: Callable[[Loop], None] | None) -> dict[str, Any]:
        stats, folder = self.trainer.stats(), self.recorder.folder
        self.recorder.event(
            "started",
            steps=self.config.pipeline.steps,
            version=self.trainer.version,
            device=stats.device,
            parameters=stats.parameters,
        )
        for doubt in doubts(self.config):
            self.recorder.event("doubt", text=doubt)
            warnings.warn(doubt, stacklevel=2)
        await self.loop.probe()
        evaluates, before, after = self.config.evaluation.every > 0, None, None
        if evaluates and folder.resumed_at is None:
            before = await self.evaluate(self.trainer.version)
        if on_loop is not None:
            on_loop(self.loop)
        await self.loop.run()
        await self.checkpoint(self.loop.state())
        if evaluates and not self.loop.stopped:
            after = await self.evaluate(self.trainer.version)
        export = await self.trainer.export(folder.export)
        report = await asyncio.to_thread(write_report, folder)
        finished = not self.loop.stopped
        self.recorder.event("finished" if finished else "stopped", version=self.trainer.version)
        paths = {"export": str(export), "report": str(report)}
        return {"before": before, "after": after, "version": self.trainer.version, "finished": finished, **paths}

    async def evaluate(self, version: int) -> dict[str, Any]:
        if self.last_report is not None and self.last_report["version"] == version:
            return self.last_report
        await self.engine.load(version, policy=EVALUATION, source=self.trainer.source)
        self.last_report = await evaluate_policy(
            self.context, self.player, recorder=self.recorder, version=version, policy=EVALUATION
        )
        self.recorder.evaluation(version, self.last_report)
        return self.last_report

    async def checkpoint(self, state: dict[str, Any]) -> None:
        await self.trainer.save(
            self.recorder.folder.path,
            state={"loop": state, "policies": self.copies.state()},
            keep=self.config.store.keep_checkpoints,
            policies=self.copies.snapshots(),
        )


def _in_loop(record: Callable[..., None]) -> Callable[..., None]:
    """Record an event of the trainer's thread in the loop's thread, the recorder's only one."""
    loop = asyncio.get_running_loop()

    def tell(kind: str, **fields: Any) -> None:
        loop.call_soon_threadsafe(partial(record, kind, **fields))

    return tell


def _newest_checkpoint(config: RunConfig) -> Path:
    folder = RunFolder.open(config.folder)
    checkpoint = latest_checkpoint(folder.path)
    if checkpoint is None:
        raise CheckpointFailed(
            f"{folder.path} has no whole checkpoint to resume from. Start the run again under another name "
            "(name=...), with a smaller store.checkpoint_every"
        )
    return checkpoint
