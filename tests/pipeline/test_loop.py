"""The loop on its seams: FakeEngine, FakeTrainer and FakeEnvironment, on the real event loop."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from ludus.config import RunConfig
from ludus.controller.client.local import LocalClient
from ludus.engines.engine import Capabilities
from ludus.engines.fake import FakeEngine
from ludus.environments.fake import FakeEnvironment
from ludus.errors import (
    ConfigError,
    EngineFailed,
    EnvironmentFailed,
    LudusError,
    StoreFailed,
    TrainerFailed,
    WorkerLost,
)
from ludus.pipeline import loop as loop_module
from ludus.pipeline.feed import Feed
from ludus.pipeline.loop import MAX_EMPTY_BATCHES, Loop
from ludus.rollout.context import RolloutContext
from ludus.rollout.fake import FakePlayer
from ludus.rollout.player import LocalPlayer
from ludus.rollout.sampler import PolicySampler
from ludus.store.recorder import Recorder
from ludus.store.run_folder import RunFolder
from ludus.trainer.fake import FakeTrainer
from ludus.types import Batch
from tests.rollout.playing import CHAT, WatchedEnvironment, say

PATIENCE_S = 120.0
"""Only so that a hang fails instead of hanging."""


class Everything:
    """An algorithm that trains on whatever it is given."""

    needs_values = trains_critic = False

    def wants(self, group):
        return True

    def batch(self, groups):
        return Batch(tuple(s for g in groups for t in g.trajectories for s in t.sequences), groups=tuple(groups))

    def loss(self, tokens):
        raise AssertionError("a FakeTrainer asks for no loss")


class Nothing(Everything):
    def batch(self, groups):
        return Batch(())


class Straggling(WatchedEnvironment):
    """One session in fifty takes as long as dozens of optimiser steps."""

    def latency(self, rng):
        return 0.15 if rng.random() < 0.02 else 0.001


class Setup:
    """A loop with its fakes and a real recorder; `on` sees what is recorded, as it is recorded."""

    def __init__(
        self, folder, environment=None, *, on=None, engine=None, trainer=None, algorithm=None, player=None, **options
    ):
        self.on: Callable[[Setup, str, Mapping[str, Any]], None] | None = on
        self.environment: FakeEnvironment = environment or WatchedEnvironment(turns=1)
        self.engine = engine or FakeEngine(lambda ids, turn: say("a"))
        self.trainer = trainer or FakeTrainer()
        self.player = player
        sections = {
            "rollout": {"group_size": 2, "retries": 0},
            "pipeline": {"steps": 5, "groups_per_step": 2, "max_staleness": 1},
        }
        for key, value in options.items():
            section, _, name = key.partition("__")
            sections.setdefault(section, {})[name] = value
        store = {"folder": str(folder), "tensorboard": False, **sections.pop("store", {})}
        self.config = RunConfig.model_validate({"name": "r", "store": store, **sections})
        self.algorithm = algorithm or Everything()
        self.evaluate = self.checkpoint = None
        self.restored: dict[str, Any] | None = None
        self.folder = RunFolder(self.config.folder)

    def make(self) -> Loop:
        folder = RunFolder.create(self.config)
        recorder = Recorder(folder, trajectories=True, listeners=[self._heard])
        self.client = LocalClient([self.environment])
        tasks = {"fake": self.environment.tasks("train")}
        self.loop = Loop(
            self.config,
            feed=Feed(tasks, weights={"fake": 1.0}, seed=0, rollout=self.config.rollout),
            player=self.player
            or LocalPlayer(RolloutContext(self.client, PolicySampler(self.engine), CHAT, self.config.rollout)),
            engine=self.engine,
            trainer=self.trainer,
            algorithm=self.algorithm,
            recorder=recorder,
            probe_ids=[1, 2, 3],
            probe_tolerance=1e-3,
            evaluate=self.evaluate,
            checkpoint=self.checkpoint,
        )
        return self.loop

    def run(self, *, stop_when: Callable[[Setup], bool] = lambda _: False) -> Setup:
        """To its end, or until that is a fact."""

        def look() -> None:
            self.loop.stop() if stop_when(self) else asyncio.get_running_loop().call_later(0.01, look)

        async def main():
            loop = self.make()
            look()
            if self.restored is not None:
                loop.restore(self.restored)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await loop.run()
            finally:
                loop.recorder.close()
                await self.client.close()
            assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing is left running"

        asyncio.run(main())
        return self

    def _heard(self, kind, fields):
        if self.on is not None:
            self.on(self, kind, fields)

    def counted(self, prefix: str) -> float:
        return sum(v for line in self.folder.metrics() for k, v in line.items() if k.startswith(prefix))

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.folder.events() if event["kind"] == kind]


def staleness(trainer: FakeTrainer) -> list[int]:
    """Of every trained group, when it was trained: batch number n was trained at version n."""
    return [group.staleness(version) for version, batch in enumerate(trainer.batches) for group in batch.groups]


# ------------------------------------------------------------------------------------------------ promise 3


@pytest.mark.parametrize("bound", [0, 1, 2])
def test_promise_3_no_trained_group_is_staler_than_the_bound_over_200_steps_with_2_percent_stragglers(tmp_path, bound):
    setup = Setup(
        tmp_path,
        Straggling(turns=1, num_tasks=500),
        trainer=FakeTrainer(step_s=0.004),
        pipeline__steps=200,
        pipeline__max_staleness=bound,
    ).run()
    assert setup.trainer.version == 200
    assert min(bound, 1) <= max(staleness(setup.trainer)) <= bound
    assert [line["staleness/max"] <= bound for line in setup.folder.metrics()] == [True] * 200
    assert setup.environment.num_open == 0
    if setup.counted("groups/dropped_stale/fake") > setup.loop.buffer.capacity:  # then some were played again by now
        check_that_what_went_stale_was_played_again(setup)


def check_that_what_went_stale_was_played_again(setup):
    trained = {group.id for batch in setup.trainer.batches for group in batch.groups}
    again = {name for name in trained if "-" in name}
    assert again, "some group was trained in its second try"
    assert not {name.split("-")[0] for name in again} & trained, "a draw is trained once"


@pytest.mark.parametrize("missing", ["load", "score"])
def test_an_engine_that_cannot_do_what_training_needs_is_refused_at_the_start(tmp_path, missing):
    engine = FakeEngine()
    engine.capabilities = Capabilities(**{"policies": True, "load": True, "score": True, missing: False})
    with pytest.raises(ConfigError, match=rf"FakeEngine cannot do what this run needs of an engine: {missing};"):
        Setup(tmp_path, engine=engine).run()


def test_the_engine_has_loaded_every_version_in_order(tmp_path):
    setup = Setup(tmp_path).run()
    assert setup.engine.loads == [("current", version) for version in range(1, 6)]


# ------------------------------------------------------------------------------------------------ failures


def test_groups_that_are_too_small_are_dropped_and_counted(tmp_path):
    environment = WatchedEnvironment(turns=1, fault="raise", fault_rate=0.4)
    setup = Setup(tmp_path, environment, pipeline__steps=20).run()
    small = setup.counted("groups/dropped_small/fake")
    failed = setup.counted("trajectories/failed/failed")
    assert 0 < small <= failed
    for batch in setup.trainer.batches:
        assert all(t.stop.scored for group in batch.groups for t in group.trajectories)
        assert all(len(group.trajectories) == 2 for group in batch.groups)


def test_a_group_goes_on_with_the_trajectories_that_it_has(tmp_path):
    environment = WatchedEnvironment(turns=1, fault="raise", fault_rate=0.4)
    setup = Setup(tmp_path, environment, pipeline__steps=20, rollout__group_size=3, rollout__min_group_size=1).run()
    sizes = {len(group.trajectories) for batch in setup.trainer.batches for group in batch.groups}
    assert sizes == {1, 2, 3}


def test_an_environment_that_always_fails_stops_the_run_and_says_why(tmp_path):
    setup = Setup(tmp_path, WatchedEnvironment(fault="raise", fault_in="start"))
    with pytest.raises(
        EnvironmentFailed, match=r"groups all failed.*the fake raised, as ordered.*ludus env check fake"
    ):
        setup.run()
    assert setup.trainer.version == 0
    assert len(list(setup.folder.read_trajectories())) > 0, "the failures can be read afterwards"


def test_an_engine_that_always_fails_is_not_called_an_environment_that_fails(tmp_path):
    with pytest.raises(EngineFailed, match="groups all failed"):
        Setup(tmp_path, engine=FakeEngine(lambda ids, turn: say("a"), fail_on=range(100_000))).run()


@pytest.mark.parametrize("logprob", [-1.1, math.nan])
def test_promise_5_a_probe_gap_beyond_the_tolerance_stops_the_run(tmp_path, logprob):
    setup = Setup(tmp_path, trainer=FakeTrainer(logprob=logprob))
    with pytest.raises(EngineFailed, match=r"on the probe prompt; expected at most 0\.001"):
        setup.run()
    assert setup.trainer.version == 1, "it stops at the first load, not later"


def test_promise_5_the_gap_is_a_metric(tmp_path):
    setup = Setup(tmp_path, trainer=FakeTrainer(logprob=-1.0005)).run()
    assert [line["probe/gap"] for line in setup.folder.metrics()] == pytest.approx([0.0005] * 5)


def test_a_fault_in_training_ends_generation_too(tmp_path):
    class Broken(FakeTrainer):
        async def step(self, batch):
            raise TrainerFailed("as ordered")

    setup = Setup(tmp_path, WatchedEnvironment(turns=1, latency_s=0.001), trainer=Broken())
    with pytest.raises(TrainerFailed, match="as ordered"):
        setup.run()
    assert setup.environment.num_open == 0


@pytest.mark.parametrize("fault", [StoreFailed("disk full"), KeyError("a bug of ours")])
def test_a_fault_in_generation_ends_training_too(tmp_path, fault):
    def fail_late(setup, kind, fields):
        if kind == "trajectory" and setup.trainer.version >= 2:
            raise fault

    setup = Setup(tmp_path, on=fail_late, pipeline__steps=100_000)
    with pytest.raises(type(fault), match=str(fault.args[0])):
        setup.run()
    assert setup.environment.num_open == 0


# ------------------------------------------------------------------------------------------------ waiting


def test_a_stall_names_what_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(loop_module, "STALL_S", 1.0)
    setup = Setup(
        tmp_path,
        WatchedEnvironment(turns=1, fault="hang"),
        on=lambda setup, kind, _: setup.loop.stop() if kind == "stall" else None,
    ).run()
    (event,) = setup.events("stall")
    assert event["playing"] == 4
    assert any("(fake/train/" in line and "acting for" in line for line in event["longest"])


def test_a_stall_of_the_trainer_is_not_blamed_on_a_session(tmp_path, monkeypatch):
    monkeypatch.setattr(loop_module, "STALL_S", 1.0)
    setup = Setup(tmp_path, trainer=FakeTrainer(step_s=2.5), pipeline__steps=1).run()
    assert setup.events("stall")[0]["longest"] == ["the trainer: every session has finished"]


def test_stop_returns_after_the_step(tmp_path):
    def stop_at_3(setup, kind, fields):
        if kind == "metrics" and fields["step"] == 3:
            setup.loop.stop()

    setup = Setup(tmp_path, on=stop_at_3, pipeline__steps=100_000).run()
    assert setup.trainer.version in (3, 4), "the step that was in progress is finished"
    assert setup.loop.loaded_version == setup.trainer.version
    assert setup.environment.num_open == 0


def test_stop_ends_a_loop_that_waits_for_a_hung_session(tmp_path):
    setup = Setup(tmp_path, WatchedEnvironment(turns=1, fault="hang"))
    setup.run(stop_when=lambda setup: len(setup.loop.buffer.playing) == 4 and len(setup.environment.sessions) == 8)
    assert setup.trainer.version == 0
    assert len(setup.loop.state()["feed"]["again"]) == 4, "what was playing is played again"


def test_tasks_without_any_gradient_end_the_run_and_say_so(tmp_path):
    setup = Setup(tmp_path, algorithm=Nothing()).run()
    assert setup.trainer.batches == []
    (event,) = setup.events("no_gradient")
    assert event["batches"] == MAX_EMPTY_BATCHES
    assert "the run ends at step 0 of" in event["text"]
    assert "attempts earned 0 on average" in event["text"]


# ------------------------------------------------------------------------------------------------ state


def stopped_with_ready_groups(folder) -> tuple[Setup, dict[str, Any]]:
    """Stopped while one group of two was complete and the others, which take 300 s, were playing."""

    class FirstIsQuick(WatchedEnvironment):
        def latency(self, rng):
            return 0.0 if len(self.sessions) <= 2 else 300.0

        def open(self, task, *, seed):
            self.sessions.append(None)
            quick = self.latency(None) == 0.0
            self.sessions.pop()
            session = super().open(task, seed=seed)
            self.sessions[-1].environment = FakeEnvironment(latency_s=0.0 if quick else 300.0)
            return session

    setup = Setup(folder, FirstIsQuick(turns=1))
    setup.run(stop_when=lambda setup: len(setup.loop.buffer.ready) == 1 and len(setup.loop.buffer.playing) == 3)
    return setup, setup.loop.state()


def test_promise_7_the_state_holds_complete_groups_and_draws_in_progress(tmp_path):
    setup, state = stopped_with_ready_groups(tmp_path / "a")
    assert len(state["ready"]) == 1
    assert len(state["feed"]["again"]) == 3
    resumed = Setup(tmp_path / "b")
    resumed.make().restore(json.loads(json.dumps(state)))
    ((draw, group),), ((old_draw, old_group),) = resumed.loop.buffer.ready, setup.loop.buffer.ready
    assert draw == old_draw
    assert [t.id for t in group.trajectories] == [t.id for t in old_group.trajectories]
    tokens = [[s.ids.tolist() for t in g.trajectories for s in t.sequences] for g in (group, old_group)]
    assert tokens[0] == tokens[1]
    playing = setup.loop.buffer.playing
    assert [resumed.loop.feed.draw() for _ in range(3)] == playing
    assert json.loads(json.dumps(resumed.loop.state()["ready"])) == json.loads(json.dumps(state["ready"]))


def test_promise_7_a_restored_loop_trains_what_was_complete_first_and_draws_nothing_twice(tmp_path):
    _, state = stopped_with_ready_groups(tmp_path / "a")
    resumed = Setup(tmp_path / "b")
    resumed.restored = json.loads(json.dumps(state))
    resumed.run()
    trained = [group.id for batch in resumed.trainer.batches for group in batch.groups]
    assert trained[0] == state["ready"][0]["group"]["id"]
    assert len(trained) == len(set(trained))
    assert sorted(trained) == [f"g{index:06d}" for index in range(10)], "and nothing is left out"


def test_checkpoints_are_made_when_due(tmp_path):
    states = []

    async def checkpoint(state):
        states.append(state)

    setup = Setup(tmp_path, store__checkpoint_every=2)
    setup.checkpoint = checkpoint
    setup.run()
    assert [event["version"] for event in setup.events("checkpoint")] == [2, 4]
    assert all(json.dumps(state) for state in states)


# ------------------------------------------------------------------------------------------------ evaluation


def test_evaluation_runs_beside_training(tmp_path):
    """The evaluation of version 2 ends only when version 3 is there: it would hang if training waited for it."""
    evaluated = []
    at_3 = asyncio.Event()

    def tell(setup, kind, fields):
        if kind == "metrics" and fields["step"] == 3:
            at_3.set()

    async def evaluate(version):
        if version == 2:
            await at_3.wait()
        evaluated.append(version)

    setup = Setup(tmp_path, on=tell, evaluation__every=2, trainer=FakeTrainer(step_s=0.02))
    setup.evaluate = evaluate
    setup.run()
    assert evaluated == [2, 4], "each version once, and the last one is waited for"


def test_an_evaluation_that_fails_ends_the_run(tmp_path):
    async def evaluate(version):
        raise EngineFailed("as ordered")

    setup = Setup(tmp_path, evaluation__every=3, pipeline__steps=100_000, trainer=FakeTrainer(step_s=0.02))
    setup.evaluate = evaluate
    with pytest.raises(LudusError, match="as ordered"):
        setup.run()
    assert setup.trainer.version <= 4, "at once, not at the next evaluation"


# ------------------------------------------------------------------------------------------------ any player


def test_a_loop_trains_on_whatever_a_player_plays(tmp_path):
    player = FakePlayer(lambda order, attempt: float(attempt))
    setup = Setup(tmp_path, player=player, cross_policy__stale=0.5, cross_policy__schedule=[[0, 1.0], [2, 0.0]]).run()
    assert len(setup.trainer.batches) == 5
    assert max(staleness(setup.trainer)) <= 1
    assert {len(order.attempts) for order in player.orders} == {2}
    chances = {order.born: order.others["stale"] for order in player.orders}
    assert [chances[version] for version in (0, 1, 2)] == [0.5, 0.25, 0.0], "as the schedule has it at that version"


def test_a_player_that_can_play_no_longer_ends_the_run_with_its_cause(tmp_path):
    player = FakePlayer(lambda order, attempt: 1.0, latency_s=PATIENCE_S)
    setup = Setup(tmp_path, player=player)

    def break_it(_: Setup) -> bool:
        if player.orders and not player.closed:
            player.closed = True
            player.break_with(WorkerLost("the player's process was killed"))
        return False

    with pytest.raises(WorkerLost, match="was killed"):
        setup.run(stop_when=break_it)
