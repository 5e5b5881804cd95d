"""Who speaks: drawn per turn or per session by the seed alone, and stored with what was said."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.engines.fake import FakeEngine
from ludus.environments.fake import FakeEnvironment
from ludus.rollout.mixed import MixedSpeaker, part_at, pick_speaker
from ludus.rollout.play import Attempt, play
from ludus.rollout.speaker import PolicySpeaker, Words
from ludus.types import CURRENT, Sampling
from tests.rollout.playing import make_arena, say

OTHERS = {"stale": 0.25, "reference": 0.25}


def play_all(make_speaker, *, count=40, turns=4):
    """Trajectories of `count` sessions, on an engine that serves three policies at versions 9, 5 and 0."""
    engine = FakeEngine(lambda ids, turn: say(f"word{turn}"), version=9)
    environment = FakeEnvironment(turns=turns)
    arena = make_arena(environment, engine)
    object.__setattr__(arena, "speaker", make_speaker(engine))
    task = environment.tasks("train")[0]

    async def main():
        await engine.add_policy("stale", version=5)
        await engine.add_policy("reference", version=0)
        try:
            return [await play(Attempt(f"s{n}", task, seed=n), arena=arena) for n in range(count)]
        finally:
            await arena.client.close()

    return asyncio.run(main())


def mixed(draw, others=OTHERS):
    return lambda engine: MixedSpeaker(engine, others=others, draw=draw, seed=0)


def test_chances_are_taken_from_the_toss_and_current_has_the_rest():
    tosses = [n / 1000 for n in range(1000)]
    assert Counter(pick_speaker(OTHERS, toss) for toss in tosses) == {"stale": 250, "reference": 250, CURRENT: 500}
    assert {pick_speaker({}, toss) for toss in tosses} == {CURRENT}


def test_per_turn_one_session_has_several_speakers_in_about_their_shares():
    trajectories = play_all(mixed("turn"))
    spoken = Counter(turn.policy for trajectory in trajectories for turn in trajectory.turns)
    assert spoken.total() == 160
    assert all(20 < spoken[name] < 60 for name in OTHERS)
    assert any(len({turn.policy for turn in trajectory.turns}) > 1 for trajectory in trajectories)


def test_per_session_a_session_has_one_speaker():
    trajectories = play_all(mixed("session"))
    assert all(len({turn.policy for turn in trajectory.turns}) == 1 for trajectory in trajectories)
    assert {trajectory.turns[0].policy for trajectory in trajectories} == {CURRENT, "stale", "reference"}


@pytest.mark.parametrize("draw", ["turn", "session"])
def test_every_token_has_the_version_of_its_own_speaker_and_age_is_that_of_the_current_policy(draw):
    versions = {CURRENT: 9, "stale": 5, "reference": 0}
    for trajectory in play_all(mixed(draw)):
        (sequence,) = trajectory.sequences
        for turn in trajectory.turns:
            own = sequence.versions[sequence.sampled & (sequence.turns == turn.index)]
            assert set(own.tolist()) == {versions[turn.policy]}
        assert trajectory.oldest_version in (9, None)


def test_the_seed_alone_decides_who_speaks():
    first, second = (
        [[turn.policy for turn in trajectory.turns] for trajectory in play_all(mixed("turn"))] for _ in range(2)
    )
    assert first == second


@pytest.mark.parametrize("draw", ["turn", "session"])
def test_a_pool_of_one_is_no_pool(draw):
    def spoken(make_speaker):
        asked = []

        class Watched(FakeEngine):
            async def generate(self, ids, *, sampling, session_id, policy=CURRENT):
                asked.append((tuple(ids), sampling, session_id, policy))
                return await super().generate(ids, sampling=sampling, session_id=session_id, policy=policy)

        engine = Watched(lambda ids, turn: say("x"))
        arena = make_arena(FakeEnvironment(turns=2), engine)
        object.__setattr__(arena, "speaker", make_speaker(engine))
        task = FakeEnvironment(turns=2).tasks("train")[0]

        async def main():
            try:
                await play(Attempt("s", task, seed=4), arena=arena)
            finally:
                await arena.client.close()

        asyncio.run(main())
        return asked

    assert spoken(mixed(draw, others={})) == spoken(PolicySpeaker)


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
    """The same coins: whoever is drawn with half the chances was drawn, or stood in his place, with all of them."""

    def drawn(part):
        def make(engine):
            speaker = MixedSpeaker(engine, others=OTHERS, draw="turn", seed=0)
            speaker.part = part
            return speaker

        return Counter(turn.policy for trajectory in play_all(make) for turn in trajectory.turns)

    whole, half, none = drawn(1.0), drawn(0.5), drawn(0.0)
    assert none == {CURRENT: 160}
    assert whole[CURRENT] < half[CURRENT] < 160
    assert half["stale"] > 0
    assert half["reference"] > 0


def test_who_was_drawn_for_a_session_speaks_to_its_end_whatever_the_part_becomes():
    engine = FakeEngine(lambda ids, turn: say("x"))
    speaker = MixedSpeaker(engine, others={"stale": 0.99}, draw="session", seed=0)
    speak = {"sampling": Sampling(max_tokens=8), "session": None, "words": Words()}

    async def main():
        await engine.add_policy("stale", version=5)
        spoken = []
        for part in (1.0, 0.0):
            speaker.part = part
            spoken.append((await speaker.speak([1], session_id="s", **speak)).policy)
        await speaker.release("s")
        spoken.append((await speaker.speak([1], session_id="s", **speak)).policy)
        return spoken

    assert asyncio.run(main()) == ["stale", "stale", CURRENT], "and is forgotten with it"
