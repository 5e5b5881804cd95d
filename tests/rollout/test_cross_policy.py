"""Which policy samples: drawn per turn or per session by the seed alone, and stored with what was said."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.engines.fake import FakeEngine
from ludus.environments.fake import FakeEnvironment
from ludus.rollout.cross_policy import chances_at, part_at, pick_policy, policy_for
from ludus.rollout.play import play
from ludus.types import CURRENT, Order, Task
from tests.rollout.playing import make_context, say

OTHERS = {"stale": 0.25, "reference": 0.25}
TASK = Task("w/train/0", "w", "train")


def order_of(others, *, task=TASK, name="s", seed=0):
    return Order(name, task, seed=(seed,), others=others)


def play_all(draw, others=OTHERS, *, count=40, turns=4):
    """Trajectories of `count` sessions, on an engine that serves three policies at versions 9, 5 and 0."""
    engine = FakeEngine(lambda ids, turn: say(f"word{turn}"), version=9)
    environment = FakeEnvironment(turns=turns)
    context = replace(make_context(environment, engine), draw=draw)
    task = environment.tasks("train")[0]

    async def main():
        await engine.add_policy("stale", version=5)
        await engine.add_policy("reference", version=0)
        try:
            orders = [order_of(others, task=task, name=f"s{n}", seed=n) for n in range(count)]
            return [await play(order, context=context) for order in orders]
        finally:
            await context.client.close()

    return asyncio.run(main())


def test_chances_are_taken_from_the_toss_and_current_has_the_rest():
    tosses = [n / 1000 for n in range(1000)]
    assert Counter(pick_policy(order_of(OTHERS), toss=toss) for toss in tosses) == {
        "stale": 250,
        "reference": 250,
        CURRENT: 500,
    }
    assert {pick_policy(order_of({}), toss=toss) for toss in tosses} == {CURRENT}


def test_per_turn_one_session_has_several_policies_in_about_their_shares():
    trajectories = play_all("turn")
    spoken = Counter(turn.policy for trajectory in trajectories for turn in trajectory.turns)
    assert spoken.total() == 160
    assert all(20 < spoken[name] < 60 for name in OTHERS)
    assert any(len({turn.policy for turn in trajectory.turns}) > 1 for trajectory in trajectories)


def test_per_session_a_session_has_one_policy():
    trajectories = play_all("session")
    assert all(len({turn.policy for turn in trajectory.turns}) == 1 for trajectory in trajectories)
    assert {trajectory.turns[0].policy for trajectory in trajectories} == {CURRENT, "stale", "reference"}


@pytest.mark.parametrize("draw", ["turn", "session"])
def test_every_token_has_the_version_of_its_own_policy_and_age_is_that_of_the_current_policy(draw):
    versions = {CURRENT: 9, "stale": 5, "reference": 0}
    for trajectory in play_all(draw):
        (sequence,) = trajectory.sequences
        for turn in trajectory.turns:
            own = sequence.versions[sequence.sampled & (sequence.turns == turn.index)]
            assert set(own.tolist()) == {versions[turn.policy]}
        assert trajectory.oldest_version in (9, None)


def test_the_seed_alone_decides_which_policy_samples():
    first, second = ([[turn.policy for turn in trajectory.turns] for trajectory in play_all("turn")] for _ in range(2))
    assert first == second


@pytest.mark.parametrize("draw", ["turn", "session"])
def test_a_pool_of_one_is_no_pool(draw):
    def asked_with(others):
        asked = []

        class Watched(FakeEngine):
            async def generate(self, ids, *, sampling, session_id, policy=CURRENT):
                asked.append((tuple(ids), sampling, session_id, policy))
                return await super().generate(ids, sampling=sampling, session_id=session_id, policy=policy)

        engine = Watched(lambda ids, turn: say("x"))
        context = replace(make_context(FakeEnvironment(turns=2), engine), draw=draw)
        task = FakeEnvironment(turns=2).tasks("train")[0]

        async def main():
            try:
                await play(order_of(others, task=task, seed=4), context=context)
            finally:
                await context.client.close()

        asyncio.run(main())
        return asked

    assert asked_with({}) == asked_with({"stale": 0.0})
    assert {policy for *_, policy in asked_with({})} == {CURRENT}


# ------------------------------------------------------------------------------------------------ a schedule of shares

FALLING = [(10, 1.0), (20, 0.5), (40, 0.0)]


def test_the_part_is_linear_between_its_points_and_level_beyond_them():
    steps = [0, 10, 12, 20, 30, 39, 40, 10_000]
    assert [part_at(FALLING, step=step) for step in steps] == pytest.approx([1, 1, 0.9, 0.5, 0.25, 0.025, 0, 0])
    assert part_at([], step=7) == 1.0
    assert part_at([(5, 0.3)], step=0) == part_at([(5, 0.3)], step=9) == 0.3


@given(
    st.dictionaries(st.integers(0, 50), st.floats(0, 1), min_size=1, max_size=5).map(lambda d: sorted(d.items())),
    st.integers(0, 60),
)
def test_the_part_stays_between_its_points_and_is_theirs_at_them(schedule, step):
    parts = [part for _, part in schedule]
    assert min(parts) - 1e-12 <= part_at(schedule, step=step) <= max(parts) + 1e-12
    assert all(part_at(schedule, step=at) == part for at, part in schedule)


def test_a_smaller_part_gives_turns_back_to_the_current_policy_and_to_nobody_else():
    """The same coins: a policy that is drawn with half the chances is drawn, or precedes in the list, with all of them."""

    def drawn(part):
        played = play_all("turn", chances_at(OTHERS, [(0, part)], step=0))
        return Counter(turn.policy for trajectory in played for turn in trajectory.turns)

    whole, half, none = drawn(1.0), drawn(0.5), drawn(0.0)
    assert none == {CURRENT: 160}
    assert whole[CURRENT] < half[CURRENT] < 160
    assert half["stale"] > 0
    assert half["reference"] > 0


def test_the_policy_of_a_session_is_the_same_in_all_its_turns_and_that_of_a_turn_is_drawn_anew():
    def drawn(draw):
        order = order_of({"stale": 0.5})
        seeds = {"draw": draw, "run_seed": 0, "session_id": "g000000.0"}
        return {policy_for(order, turn_seed=seed, **seeds) for seed in range(20)}

    assert len(drawn("session")) == 1
    assert drawn("turn") == {"stale", CURRENT}


def test_the_draws_are_those_of_earlier_versions():
    """Literal values: a change of these would change every run with other policies."""
    order = order_of({"stale": 0.4, "reference": 0.3})
    seeds = {"order": order, "run_seed": 7}
    turns = [policy_for(draw="turn", session_id="s", turn_seed=seed, **seeds) for seed in range(8)]
    sessions = [policy_for(draw="session", session_id=f"g000001.{n}", turn_seed=0, **seeds) for n in range(8)]
    assert turns == ["current", "reference", "current", "stale", "current", "current", "reference", "stale"]
    assert sessions == ["stale", "current", "current", "current", "reference", "reference", "stale", "stale"]
