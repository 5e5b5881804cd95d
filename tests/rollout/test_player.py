"""Groups: one prompt, different noise; what failed is retried or left out, never scored."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ludus.engines.fake import FakeEngine
from ludus.rollout.player import LocalPlayer
from ludus.rollout.sampler import SOLVER, SolverSampler
from ludus.types import Group, Order, Stop
from tests.rollout.playing import CHAT, WatchedEnvironment, make_context, says


def run(environment, engine, *, size=4, retries=0, sampler=None, **limits) -> Group:
    async def main():
        context = make_context(environment, engine, **limits)
        if sampler is not None:
            context = replace(context, sampler=sampler)
        task = environment.tasks("train")[0]
        try:
            order = Order("g1", task, seed=(7,), attempts=tuple(range(size)), retries=retries, born=3)
            return await LocalPlayer(context).play(order)
        finally:
            await context.client.close()

    return asyncio.run(main())


def first_prompt(trajectory):
    (sequence, *_) = trajectory.sequences
    return sequence.ids[: trajectory.turns[0].num_prompt_tokens].tolist()


def test_attempts_share_the_first_prompt_and_differ_in_noise():
    environment = WatchedEnvironment()
    group = run(environment, FakeEngine(vocab_size=200), max_turn_tokens=6)
    prompts = [first_prompt(trajectory) for trajectory in group.trajectories]
    assert len(prompts) == 4
    assert all(prompt == prompts[0] for prompt in prompts)
    assert len({tuple(t.sequences[0].ids.tolist()) for t in group.trajectories}) == 4
    assert len(set(environment.seeds)) == 4
    assert [t.id for t in group.trajectories] == ["g1.0", "g1.1", "g1.2", "g1.3"]
    assert group.born == 3


def test_the_same_seed_plays_the_same_group():
    groups = [run(WatchedEnvironment(), FakeEngine(vocab_size=200), max_turn_tokens=6) for _ in range(2)]
    first, second = ([t.sequences[0].ids.tolist() for t in group.trajectories] for group in groups)
    assert first == second


def test_a_failed_attempt_is_left_out_and_kept_for_the_record():
    group = run(WatchedEnvironment(), FakeEngine(says("a", "b", "c"), fail_on=[1]))
    assert len(group.trajectories) == 3
    assert [t.stop for t in group.failed] == [Stop.FAILED]


def test_a_retry_gets_another_seed_and_its_own_id():
    environment = WatchedEnvironment()
    group = run(environment, FakeEngine(says("a", "b", "c"), fail_on=[0]), size=2, retries=1)
    assert sorted(t.id for t in group.trajectories) == ["g1.0r1", "g1.1"]
    assert [t.id for t in group.failed] == ["g1.0"]
    assert {t.attempt for t in group.trajectories} == {0, 1}
    assert len(set(environment.seeds)) == 3


def test_retries_end():
    environment = WatchedEnvironment(fault="raise", fault_in="start")
    group = run(environment, FakeEngine(says("a")), size=2, retries=2)
    assert group.trajectories == ()
    assert len(group.failed) == 6
    assert environment.num_open == 0


def test_what_the_policy_did_wrong_is_not_retried():
    environment = WatchedEnvironment()
    group = run(environment, FakeEngine(says("a " * 50)), size=2, retries=3, max_turn_tokens=4)
    assert {t.stop for t in group.trajectories} == {Stop.MAX_TURN_TOKENS}
    assert len(environment.sessions) == 2


def test_a_bug_of_ours_ends_the_other_attempts_too(monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise KeyError("ours")

    environment, engine = WatchedEnvironment(), FakeEngine(says("a"))
    monkeypatch.setattr(CHAT, "parse", broken)
    with pytest.raises(ExceptionGroup):
        run(environment, engine)
    assert environment.num_open == 0
    assert sorted(engine.released) == ["g1.0", "g1.1", "g1.2", "g1.3"]


def test_a_solver_samples_tokens_like_a_policy():
    group = run(WatchedEnvironment(), FakeEngine([]), size=2, sampler=SolverSampler(mistakes=0.0, chat=CHAT))
    assert [t.reward for t in group.trajectories] == pytest.approx([1.0, 1.0])
    assert {turn.policy for t in group.trajectories for turn in t.turns} == {SOLVER}
    assert all(t.oldest_version is None for t in group.trajectories), "no token of the current policy"


def test_a_world_without_a_solver_says_so():
    class Unsolved(WatchedEnvironment):
        def open(self, task, *, seed):
            session = super().open(task, seed=seed)
            session.solve = None
            return session

    group = run(Unsolved(), FakeEngine([]), size=1, sampler=SolverSampler(mistakes=0.0, chat=CHAT))
    assert "has no solve()" in group.failed[0].failure
