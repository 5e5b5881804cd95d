"""Composition root of a training run on one machine: parts become a run. Nothing else in Ludus knows how they fit together."""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ludus.algorithms import make_algorithm
from ludus.algorithms.soundness import doubts
from ludus.config import RunConfig
from ludus.engines.embedded import SWITCH_S
from ludus.errors import CheckpointFailed, ConfigError, first_fault
from ludus.garbage import rarely_collected
from ludus.launch.context import Parts, beginning, make_arena, make_embedded_engine, make_parts, patiently
from ludus.launch.cross_policy import OtherSpeakers
from ludus.launch.devices import make_current, naming_loss
from ludus.launch.environments import address_of_workers
from ludus.launch.evaluate import evaluate_policy, held_out
from ludus.launch.placement.processes import SessionsApart, Setup
from ludus.models.loading.load import device_name, load_model, load_tokenizer
from ludus.pipeline.feed import Feed
from ludus.pipeline.loop import Loop
from ludus.reports.report import write_report
from ludus.rollout.group import GroupPlayer, PlaysHere
from ludus.rollout.speaker import PolicySpeaker
from ludus.store.recorder import Listener, Recorder
from ludus.store.run_folder import RunFolder
from ludus.trainer.budget import OnEvent
from ludus.trainer.checkpoint import latest_checkpoint
from ludus.trainer.critics.archer import Archer
from ludus.trainer.critics.value import Critic
from ludus.trainer.lora import add_adapters, export
from ludus.trainer.optimizer import Schedule, warmup, warmup_cosine
from ludus.trainer.state import named_tensors
from ludus.trainer.trainer import Trainer
from ludus.weights.memory import MemoryChannel

EVALUATION = "evaluation"
"""The policy that held-out tasks are played with: a snapshot of one version, so that a result is about that version alone."""


async def train(
    config: RunConfig,
    *,
    resume: bool = False,
    listeners: Iterable[Listener] = (),
    on_loop: Callable[[Loop], None] | None = None,
) -> dict[str, Any]:
    """A whole training run; returns its last evaluation and where things are. `on_loop` gets the loop, to be able to stop it."""
    if config.engine.kind != "embedded":
        raise ConfigError(
            f"engine.kind is {config.engine.kind!r}, which cannot load new weights yet; training needs 'embedded'. "
            "`ludus eval` works with a server"
        )
    # Engine, trainer and sessions are threads of one interpreter, on a CPU too.
    sys.setswitchinterval(SWITCH_S)
    checkpoint = _newest_checkpoint(config) if resume else None
    folder = RunFolder.resume(config, step=_step_of(checkpoint)) if checkpoint else RunFolder.create(config)
    store = config.store
    with Recorder(
        folder, tensorboard=store.tensorboard, trajectories=store.trajectories, listeners=listeners
    ) as recorder:
        async with AsyncExitStack() as closing:
            with beginning(folder):
                parts = await make_parts(config, folder=folder.path)
                closing.push_async_callback(parts.client.close)
                apart = await _sessions_apart(parts, folder=folder.path)
                if apart is not None:
                    closing.push_async_callback(apart.close)
                make_current(parts.devices.trainer)
                closing.enter_context(naming_loss(parts.devices.trainer))
                training = _Training(parts, apart=apart, recorder=recorder)
                closing.push_async_callback(training.engine.close)
                closing.push_async_callback(training.speakers.close)
                await training.prepare(checkpoint)
            with rarely_collected():
                return await training.run(on_loop)


class _Training:
    def __init__(self, parts: Parts, *, apart: SessionsApart | None, recorder: Recorder) -> None:
        self.parts, self.config, self.recorder = parts, parts.config, recorder
        self.apart = apart
        """None: sessions are played in this process."""
        self.algorithm = make_algorithm(self.config.algorithm)
        self.channel = MemoryChannel()
        model = parts.load_model()
        add_adapters(model, self.config.lora, seed=self.config.seed)
        on_event = _in_loop(recorder.event)
        self.trainer = Trainer(
            model,
            algorithm_loss=self.algorithm.loss,
            config=self.config.trainer,
            temperature=self.config.rollout.temperature,
            channel=self.channel,
            schedule=_schedule(self.config),
            reference=_reference(parts),
            entropy_gradient=self.config.algorithm.entropy_weight > 0,
            critic=_critic(parts, policy=model, on_event=on_event),
            on_event=on_event,
        )
        self.engine = make_embedded_engine(parts, channel=self.channel)
        self.speakers = OtherSpeakers(parts, engine=self.engine, channel=self.channel)
        self.last_report: dict[str, Any] | None = None

    async def prepare(self, checkpoint: Path | None) -> None:
        """Engine and trainer at the same version, and the loop where the checkpoint left it."""
        parts = self.parts
        if self.config.evaluation.every:
            await held_out(parts)
        restored = self.trainer.restore(checkpoint) if checkpoint else None
        version = self.trainer.publish()
        await self.engine.load(version)
        await self.engine.add_policy(EVALUATION, version=version)
        await self.speakers.prepare(
            version=version, checkpoint=restored, start=lambda: named_tensors(parts.load_model())
        )
        tasks = await parts.tasks("train")
        self.loop = Loop(
            self.config,
            feed=Feed(
                tasks,
                weights={n: e.weight for n, e in self.config.environments.items()},
                seed=self.config.seed,
                curriculum=self.config.curriculum,
            ),
            player=await self._player(),
            engine=self.engine,
            trainer=self.trainer,
            algorithm=self.algorithm,
            recorder=self.recorder,
            probe_ids=parts.probe_ids,
            probe_tolerance=parts.probe_tolerance,
            evaluate=self.evaluate,
            checkpoint=self.checkpoint,
            refresh=self.speakers.refresh,
            engine_counts=lambda: asdict(self.engine.stats()),
            on_trainer_thread=lambda: make_current(parts.devices.trainer),
        )
        if restored is not None:
            self.loop.restore(restored.state["loop"])

    async def _player(self) -> GroupPlayer:
        speaker = self.speakers.speaker()
        if self.apart is None:
            return PlaysHere(make_arena(self.parts, speaker))
        await patiently(self.apart.ready(speaker), what="starting what plays the sessions (pipeline.session_processes)")
        return self.apart

    async def run(self, on_loop: Callable[[Loop], None] | None) -> dict[str, Any]:
        model = self.trainer.model
        self.recorder.event(
            "started",
            steps=self.config.pipeline.steps,
            version=self.trainer.version,
            device=device_name(model.device),
            parameters=model.num_parameters(),
        )
        for doubt in doubts(self.config):
            self.recorder.event("doubt", text=doubt)
            warnings.warn(doubt, stacklevel=2)
        await self.loop.probe()
        before = None
        if self.config.evaluation.every and self.recorder.folder.resumed_at is None:
            before = await self.evaluate(self.trainer.version)
        if on_loop is not None:
            on_loop(self.loop)
        await self._run_loop()
        self.checkpoint(self.loop.state())
        after = None
        if self.config.evaluation.every and not self.loop.stopped:
            after = await self.evaluate(self.trainer.version)
        whole = export(self.recorder.folder.export, model=self.trainer.model, tokenizer=self.parts.tokenizer)
        report = await asyncio.to_thread(write_report, self.recorder.folder)
        finished = not self.loop.stopped
        self.recorder.event("finished" if finished else "stopped", version=self.trainer.version)
        paths = {"export": str(whole), "report": str(report)}
        return {"before": before, "after": after, "version": self.trainer.version, "finished": finished, **paths}

    async def _run_loop(self) -> None:
        """An engine that has ended ends the run at once: every session would fail, be counted as bad luck, and be played again."""
        try:
            async with asyncio.TaskGroup() as both:
                watching = both.create_task(self.engine.ended())
                await self.loop.run()
                watching.cancel()
        except BaseExceptionGroup as faults:
            raise first_fault(faults) from faults

    async def evaluate(self, version: int) -> dict[str, Any]:
        if self.last_report is not None and self.last_report["version"] == version:
            return self.last_report
        await self.engine.load(version, policy=EVALUATION)
        arena = make_arena(
            self.parts,
            PolicySpeaker(self.engine, policy=EVALUATION),
            temperature=self.config.evaluation.temperature,
        )
        self.last_report = await evaluate_policy(self.parts, arena, recorder=self.recorder, version=version)
        return self.last_report

    def checkpoint(self, state: dict[str, Any]) -> None:
        self.trainer.save(
            self.recorder.folder.path,
            state={"loop": state, "speakers": self.speakers.state()},
            files={},
            keep=self.config.store.keep_checkpoints,
            tensors=self.speakers.tensors(),
        )


async def _sessions_apart(parts: Parts, *, folder: Path) -> SessionsApart | None:
    num = parts.config.pipeline.processes(on_gpu=parts.devices.engine.type == "cuda")
    if not num:
        return None
    setup = Setup(
        config=parts.config,
        folder=folder,
        model_folder=parts.model_folder,
        max_turns=parts.max_turns,
        workers=address_of_workers(parts.client),
    )
    return await SessionsApart.start(setup, num=num)


def _in_loop(record: Callable[..., None]) -> Callable[..., None]:
    """The trainer tells from its own thread; whoever records has one thread, that of the loop."""
    loop = asyncio.get_running_loop()

    def tell(kind: str, **fields: Any) -> None:
        loop.call_soon_threadsafe(partial(record, kind, **fields))

    return tell


def _reference(parts: Parts) -> PreTrainedModel | None:
    """The frozen model that the loss compares with: the teacher, or what the run started with."""
    name = parts.config.teacher.model
    if not name:
        return parts.load_model() if parts.config.algorithm.kl != "none" else None
    if load_tokenizer(name).get_vocab() != parts.tokenizer.get_vocab():
        raise ConfigError(
            f"teacher.model {name!r} has another vocabulary than model.name {parts.config.model.name!r}; a teacher judges the very "
            "ids that were sampled. Use a teacher of the same family."
        )
    return load_model(name, device=parts.devices.trainer, dtype=parts.dtype)


def _critic(parts: Parts, *, policy: PreTrainedModel, on_event: OnEvent) -> Critic | Archer | None:
    config, trainer = parts.config.critic, parts.config.trainer
    if config.kind == "none":
        return None
    if config.kind == "archer":
        discount, seed = parts.config.algorithm.get("discount"), parts.config.seed
        return Archer(
            config, encoder=parts.load_model(), trainer=trainer, discount=discount, seed=seed, on_event=on_event
        )
    own = parts.load_model() if config.kind == "model" else None
    return Critic(config, policy=policy, model=own, trainer=trainer, on_event=on_event)


def _schedule(config: RunConfig) -> Schedule:
    """Of the policy's steps: those of the critic's own warm-up come before its first."""
    trainer, alone = config.trainer, config.critic.warmup
    schedule = warmup(trainer.lr, steps=trainer.warmup_steps)
    if trainer.decay == "cosine":
        steps = max(1, config.pipeline.steps - alone)
        schedule = warmup_cosine(trainer.lr, warmup_steps=trainer.warmup_steps, steps=steps)
    return lambda step: schedule(step - alone)


def _newest_checkpoint(config: RunConfig) -> Path:
    folder = RunFolder.open(config.folder)
    checkpoint = latest_checkpoint(folder.path)
    if checkpoint is None:
        raise CheckpointFailed(
            f"{folder.path} has no whole checkpoint to resume from. Start the run again under another name (name=...), "
            "with a smaller store.checkpoint_every"
        )
    return checkpoint


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))
