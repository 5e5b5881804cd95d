"""The loop that turns sessions into a better policy.

Promise: generation and training wait for each other only where the staleness bound demands it.

    generate                               train
    ────────                               ─────
    wait for a free place     ◀──────┐     wait for groups_per_step groups, young enough
    draw a task from the feed        │     make a batch, take an optimiser step (own thread)
    play a group (n sessions)        │     publish version v
    put it into the buffer ──▶ take ─┼──▶  evaluate and checkpoint when due
                                     └──── meanwhile the engine loads v, which frees places

Both run on one event loop; sessions are coroutines. With max_staleness = 0 the two wait for each
other in turn: that is synchronous training, by this same loop.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ludus.algorithms.algorithm import Algorithm
from ludus.config import RunConfig
from ludus.engines.engine import Engine
from ludus.errors import (
    ConfigError,
    ControllerFailed,
    EngineFailed,
    EngineLost,
    EnvironmentFailed,
    LudusError,
    WorkerLost,
    first_fault,
)
from ludus.pipeline.buffer import Buffer
from ludus.pipeline.clock import Ledger, Timekeeper
from ludus.pipeline.feed import Feed, next_try, order_to_dict
from ludus.pipeline.horizon import Horizons
from ludus.pipeline.measure import kept_shares, step_metrics
from ludus.pipeline.monitor import Monitor
from ludus.rollout.cross_policy import chances_at
from ludus.rollout.player import Player
from ludus.store.recorder import Recorder
from ludus.store.trajectories import group_from_dict, group_to_dict
from ludus.trainer.trainer import Trainer
from ludus.types import Batch, Group, Order, Trajectory

STALL_S = 60.0
"""After this time without a finished group, an event reports what sessions are waiting for."""
MAX_FAILED_GROUPS = 25
"""Groups in a row without enough scored attempts that a run survives, whatever the capacity."""
MAX_EMPTY_BATCHES = 25
"""Batches in a row without gradient, or as many groups replaced in a row, that end the run."""

Evaluate = Callable[[int], Coroutine[Any, Any, object]]
"""Evaluates the published version and records the result, beside training."""
Refresh = Callable[[int], Awaitable[None]]
"""Loads the version into the other policies that are due for it."""
Checkpoint = Callable[[dict[str, Any]], Awaitable[object]]
"""Saves trainer and loop state between two optimiser steps."""
GAUGES = ("running", "waiting")
"""The engine's statistics that are not totals."""


def _require(engine: Engine, *capabilities: str) -> None:
    """Refuse, before anything is played, an engine that lacks a capability of this run."""
    if missing := [name for name in capabilities if not getattr(engine.capabilities, name)]:
        raise ConfigError(
            f"{type(engine).__name__} cannot do what this run needs of an engine: {', '.join(missing)}; it needs "
            f"{', '.join(capabilities)}, as engine.kind 'embedded' has them"
        )


@dataclass(frozen=True, slots=True)
class _Step:
    """An optimiser step from version `before` to `version`, which is published."""

    groups: tuple[Group, ...]
    batch: Batch
    before: int
    version: int
    expected: list[float]
    """The trainer's logprobs of the probe prompt."""
    figures: dict[str, float]


class Loop:
    def __init__(
        self,
        config: RunConfig,
        *,
        feed: Feed,
        player: Player,
        engine: Engine,
        trainer: Trainer,
        algorithm: Algorithm,
        recorder: Recorder,
        probe_ids: Sequence[int],
        probe_tolerance: float,
        evaluate: Evaluate | None = None,
        checkpoint: Checkpoint | None = None,
        refresh: Refresh | None = None,
    ) -> None:
        _require(engine, "load", "score", *(("policies",) if evaluate is not None else ()))
        self.config, self.pipeline = config, config.pipeline
        self.feed, self.player, self.engine, self.trainer = feed, player, engine, trainer
        self.algorithm, self.recorder = algorithm, recorder
        self.probe_ids, self.probe_tolerance = list(probe_ids), probe_tolerance
        self.evaluate, self.checkpoint, self.refresh = evaluate, checkpoint, refresh
        self.buffer = Buffer(groups_per_step=self.pipeline.groups_per_step, max_staleness=self.pipeline.max_staleness)
        self.horizons, self.monitor = Horizons(config.horizons), Monitor(config.monitor)
        self.loaded_version, self.stopped = trainer.version, False
        self._changed = asyncio.Event()
        self._counts: Counter[str] = Counter()
        self._failed_in_a_row = self._replaced_in_a_row = 0
        self._last_progress = time.monotonic()
        self._last_group: Group | None = None
        self._evaluation: asyncio.Task[object] | None = None
        self._delivery: asyncio.Task[None] | None = None
        self._ledger = Ledger("wait")

    async def run(self) -> None:
        """Run until pipeline.steps optimiser steps are done or stop() is called.

        A fault on either side ends both and is raised."""
        try:
            async with asyncio.TaskGroup() as sides:
                # a role that ends ends the run: without an engine every session would fail
                ended = [role.ended() for role in (self.engine, self.trainer, self.player)]
                work = [self._generate(), self._watch(), self._timekeeper().run(), *ended]
                beside = [sides.create_task(each) for each in work]
                await self._train(sides)
                for side in beside:
                    side.cancel()
        except BaseExceptionGroup as faults:
            raise first_fault(faults) from faults

    def _timekeeper(self) -> Timekeeper:
        def engine(*, gauge: bool) -> dict[str, float]:
            stats = asdict(self.engine.stats())
            return {name: count for name, count in stats.items() if (name in GAUGES) == gauge}

        return Timekeeper(
            self.recorder.timeline,
            totals={
                "trainer": self._ledger.spent,
                "sessions": lambda: self.player.stats().spent,
                "engine": lambda: engine(gauge=False),
            },
            gauges={
                "requests": lambda: engine(gauge=True),
                "groups": lambda: {"playing": len(self.buffer.playing), "ready": len(self.buffer.ready)},
            },
        )

    def stop(self) -> None:
        """Finish the optimiser step in progress, then return from run()."""
        self.stopped = True
        self._changed.set()

    # ---------------------------------------------------------------------------- generating

    async def _generate(self) -> None:
        async with asyncio.TaskGroup() as groups:
            while True:
                while self.buffer.num_free <= 0:
                    await self._change()
                order = self.buffer.admit(self._draw(), version=self.loaded_version)
                groups.create_task(self._play(order))

    def _draw(self) -> Order:
        order, step, mixed = self.feed.draw(), self.loaded_version, self.config.cross_policy
        if order.max_turns is None:  # else it was decided before the run was interrupted
            order = replace(order, max_turns=self.horizons.limit(order.task.environment, step=step))
        return replace(order, others=chances_at(mixed.others, mixed.schedule, step=step))

    async def _play(self, order: Order) -> None:
        group = await self.player.play(
            order,
            on_trajectory=lambda t: self.recorder.trajectory(t, step=self.trainer.version, group_id=order.id),
        )
        self._settle(order, group)
        self._last_progress = time.monotonic()
        self._changed.set()

    def _settle(self, order: Order, group: Group) -> None:
        """Put the group into the buffer, or drop it: too few scored attempts, or not wanted."""
        for trajectory in group.failed:
            self._counts[f"trajectories/failed/{trajectory.stop}"] += 1
        if len(group.trajectories) < self.config.rollout.min_group_size:
            self._drop_small(order, group)
            return
        self._failed_in_a_row, self._last_group = 0, group
        replaced = not self.algorithm.wants(group)
        self.feed.settle(order, group, replaced=replaced)
        self._replaced_in_a_row = self._replaced_in_a_row + 1 if replaced else 0
        if replaced:
            self.buffer.drop(order)
            self._counts[f"groups/replaced/{order.task.environment}"] += 1
        else:
            self.buffer.put(order, group)

    def _drop_small(self, order: Order, group: Group) -> None:
        self.buffer.drop(order)
        self.feed.drop(order)
        self._counts[f"groups/dropped_small/{order.task.environment}"] += 1
        self._failed_in_a_row += 1
        if self._failed_in_a_row > max(MAX_FAILED_GROUPS, 2 * self.buffer.capacity):
            section = self.config.environments.get(order.task.environment)
            check = section.source if section and section.source else order.task.environment
            raise _nothing_to_train(self._failed_in_a_row, group, check=check)

    @property
    def _exhausted(self) -> bool:
        """True once the filter has replaced every group for a long time."""
        return self._replaced_in_a_row >= MAX_EMPTY_BATCHES * self.pipeline.groups_per_step

    # ---------------------------------------------------------------------------- training

    async def _train(self, sides: asyncio.TaskGroup) -> None:
        empty = 0
        while self.trainer.version < self.pipeline.steps and empty < MAX_EMPTY_BATCHES:
            began = time.monotonic()
            groups = await self._take()
            if groups is None:  # asked to stop, or no gradient left
                break
            with self._ledger.during("train"):
                batch = await self._batch(groups)
            self.feed.train(groups, batch)
            self.horizons.learn(groups)
            empty = 0 if batch.sequences else empty + 1
            if not batch.sequences:
                self._counts["groups/empty_batches"] += 1
                self._look(step_metrics(groups, batch, version=self.trainer.version), version=self.trainer.version)
                self._free(groups)
                continue
            step = await self._step(groups, batch, wait_s=time.monotonic() - began)
            self._delivery = sides.create_task(self._deliver(step))
            await self._milestones(sides)
        await self._delivered()
        if empty >= MAX_EMPTY_BATCHES or self._exhausted:
            text = _out_of_gradient(self.trainer.version, self.pipeline.steps, self._last_group)
            self.recorder.event("no_gradient", batches=empty, version=self.trainer.version, text=text)

    async def _batch(self, groups: tuple[Group, ...]) -> Batch:
        """Make the batch. A critic's values are computed before it learns from this batch."""
        if not self.algorithm.needs_values:
            return self.algorithm.batch(groups)
        loop = asyncio.get_running_loop()

        def values(trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
            return asyncio.run_coroutine_threadsafe(self.trainer.values(trajectories), loop).result()

        return await asyncio.to_thread(self.algorithm.batch, groups, values=values)

    def _free(self, groups: tuple[Group, ...]) -> None:
        """Free the groups' places: the engine has loaded the weights that they changed, if any."""
        self.buffer.loaded(len(groups))
        self._changed.set()

    async def _take(self) -> tuple[Group, ...] | None:
        while not self.stopped and not self._exhausted:
            groups, stale = self.buffer.take(version=self.trainer.version)
            for order in stale:
                self._counts[f"groups/dropped_stale/{order.task.environment}"] += 1
                self.feed.put_back(next_try(order))
            if stale:
                self._changed.set()
            if groups is not None:
                return groups
            await self._change()
        return None

    async def _step(self, groups: tuple[Group, ...], batch: Batch, *, wait_s: float) -> _Step:
        """Train and publish."""
        before, began = self.trainer.version, time.monotonic()
        with self._ledger.during("train"):
            trained = await self.trainer.step(batch)
        train_s = time.monotonic() - began
        await self._delivered()
        with self._ledger.during("publish"):
            version = await self.trainer.publish()
            expected = await self.trainer.logprobs(self.probe_ids)
        figures = {f"optimizer/{name}": value for name, value in trained.items()}
        publish_s = time.monotonic() - began - train_s
        figures |= {"time/wait_s": wait_s, "time/train_s": train_s, "time/publish_s": publish_s}
        return _Step(groups, batch, before, version, expected, figures)

    def _look(self, metrics: dict[str, float], *, version: int) -> None:
        for sign in self.monitor.look(metrics):
            self.recorder.event("collapse", version=version, text=sign.text, **asdict(sign))
        if self.monitor.lost and not self.stopped:
            text = f"{self.monitor.config.stop} signs of collapse show at once (monitor.stop): the run ends with a checkpoint"
            self.recorder.event("collapsed", version=version, text=text)
            self.stop()

    async def _deliver(self, step: _Step) -> None:
        """Load the version into the engine, beside training. A wrong or partial load raises."""
        await self.engine.load(step.version, source=self.trainer.source)
        self.loaded_version = step.version
        if self.refresh is not None:
            await self.refresh(step.version)
        if step.version < self.pipeline.steps:
            self._free(step.groups)  # the next groups start during the probe; its failure ends them
        gap = await self._gap(step.expected)
        metrics = {**step.figures, **step_metrics(step.groups, step.batch, version=step.before)}
        metrics |= {
            "groups/playing": len(self.buffer.playing),
            "groups/ready": len(self.buffer.ready),
            "probe/gap": gap,
        }
        metrics |= {name: float(count) for name, count in self._counts.items()}
        metrics |= kept_shares(step.groups, self._counts) if self.config.algorithm.filter == "dynamic" else {}
        self._counts.clear()
        self.recorder.metrics(step.version, metrics)
        self._look(metrics, version=step.version)

    async def _delivered(self) -> None:
        """Wait for the load. With the engine two versions behind, groups would be born too old."""
        if self._delivery is not None:
            with self._ledger.during("load"):
                await self._delivery

    async def probe(self) -> float:
        """Return the mean logprob gap between engine and trainer on the probe prompt."""
        return await self._gap(await self.trainer.logprobs(self.probe_ids))

    async def _gap(self, expected: Sequence[float]) -> float:
        got = await self.engine.score(self.probe_ids, temperature=self.config.rollout.temperature)
        # the mean: in half precision one unlikely token differs as much as a wrong load makes all
        gap = statistics.fmean(abs(a - b) for a, b in zip(expected, got, strict=True))
        if not gap <= self.probe_tolerance:  # NaN fails too
            raise EngineFailed(
                f"after loading version {self.loaded_version} the engine's logprobs differ from the trainer's by "
                f"{gap:.3g} on the probe prompt; expected at most {self.probe_tolerance:g}. The load was wrong "
                "or partial, or the engine computes in lower precision: then raise pipeline.probe_tolerance"
            )
        return gap

    async def _milestones(self, sides: asyncio.TaskGroup) -> None:
        version, every = self.trainer.version, self.config.evaluation.every
        if self.evaluate is not None and every and version % every == 0:
            await self._delivered()
            if self._evaluation is not None:
                with self._ledger.during("evaluate"):
                    await self._evaluation
            self._evaluation = sides.create_task(self.evaluate(version))
        every = self.config.store.checkpoint_every
        if self.checkpoint is not None and every and version % every == 0:
            await self._delivered()  # the metrics of a checkpoint's step are recorded first
            with self._ledger.during("save"):
                await self.checkpoint(self.state())
            self.recorder.event("checkpoint", version=version)

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs beside the trainer: complete groups, orders to play."""
        feed = self.feed.state(again=self.buffer.playing)
        ready = [{"order": order_to_dict(order), "group": group_to_dict(group)} for order, group in self.buffer.ready]
        return {"feed": feed, "ready": ready, "horizons": self.horizons.state(), "monitor": self.monitor.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self.feed.restore(state["feed"])
        self.horizons.restore(state["horizons"])
        self.monitor.restore(state["monitor"])
        self.buffer.restore((self.feed.revive(e["order"]), group_from_dict(e["group"])) for e in state["ready"])

    async def _watch(self) -> None:
        """Report what sessions are waiting for when no group has finished for a while."""
        while True:
            await asyncio.sleep(STALL_S / 4)
            idle_s = time.monotonic() - self._last_progress
            if idle_s > STALL_S:
                waiting = self.player.stats().longest or ["the trainer: every session has finished"]
                playing = len(self.buffer.playing)
                text = f"no group has finished for {idle_s:.0f} s, {playing} are playing; longest waits: {'; '.join(waiting)}"
                self.recorder.event("stall", idle_s=round(idle_s), playing=playing, longest=list(waiting), text=text)
                self._last_progress = time.monotonic()

    async def _change(self) -> None:
        """Wait until a place became free, a group is ready, or the run is to stop."""
        self._changed.clear()
        await self._changed.wait()


def _out_of_gradient(version: int, steps: int, last: Group | None) -> str:
    earned = ""
    if last is not None:
        rewards = [trajectory.reward for trajectory in last.trajectories]
        mean = statistics.fmean(rewards)
        earned = f" In the last one, {last.task.id}, {len(rewards)} attempts earned {mean:g} on average."
    return (
        f"the run ends at step {version} of {steps}: for {MAX_EMPTY_BATCHES} batches no group has had reward variance, so "
        f"there is no gradient.{earned} If every attempt fails, warm up the model with `ludus sft` or use easier tasks; "
        "if every attempt succeeds, use harder tasks"
    )


def _nothing_to_train(num_groups: int, last: Group, *, check: str) -> LudusError:
    """Return an error named after the latest failure; `check` is the environment to look at."""
    cause = last.failed[-1].failure
    what = f"the last {num_groups} groups all failed, so nothing can be trained; the latest cause was: {cause}."
    for failure in (EngineLost, EngineFailed, WorkerLost, ControllerFailed):
        if cause.startswith(failure.__name__):
            return failure(what)
    return EnvironmentFailed(f"{what} `ludus env check {check}` plays it without a model.")
