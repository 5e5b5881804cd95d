"""Who speaks: drawn per turn or per session by the seed alone, and stored with what was said."""

import asyncio
from collections import Counter

import pytest

from ludus.engines.fake import FakeEngine
from ludus.environments.fake import FakeEnvironment
from ludus.rollout.mixed import MixedSpeaker, pick_speaker
from ludus.rollout.play import Attempt, play
from ludus.rollout.speaker import PolicySpeaker
from ludus.types import CURRENT
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
