"""Promise 6 inside a session: whatever happens, a trajectory comes back, its stop says why it ended, and a failure is never a reward."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace

import pytest

from ludus.controller.client.local import LocalClient
from ludus.engines.fake import FakeEngine
from ludus.environments import registry
from ludus.environments.fake import FakeEnvironment
from ludus.rollout import play as play_module
from ludus.rollout.play import play
from ludus.types import Message, Observation, Order, Stop, Trajectory
from tests.rollout.playing import CHAT, WatchedEnvironment, call, make_context, say, says, words_of


def guess(**options):
    return registry.make("guess", options={"numbers": 5, "max_turns": 4, **options})


def run(environment, engine, *, index=0, seed=1, **limits) -> Trajectory:
    async def main():
        context = make_context(environment, engine, **limits)
        task = environment.tasks("train")[index]
        try:
            return await play(Order("s1", task, seed=(seed,)), context=context)
        finally:
            assert context.activity.longest() == (), "a session that is over is waiting for nothing"
            await context.client.close()

    return asyncio.run(main())


def sampled_of(trajectory: Trajectory) -> list[list[int]]:
    """The trained ids by turn."""
    (sequence,) = trajectory.sequences
    return [sequence.ids[sequence.sampled & (sequence.turns == turn.index)].tolist() for turn in trajectory.turns]


def within_limit(attempt, *, failure) -> Trajectory:
    """`attempt(limit_s)` that ends with `failure(limit_s)`. On a machine that stands still for as long as that, something else exceeds the
    limit, and rightly so: then a longer one is tried."""
    for limit_s in (1.0, 5.0, 25.0):
        trajectory = attempt(limit_s)
        if trajectory.failure == failure(limit_s) or "exceeded" not in trajectory.failure:
            break
    assert trajectory.failure == failure(limit_s)
    return trajectory


# ------------------------------------------------------------------------------------------------ a good session


def test_a_session_runs_until_the_environment_is_done():
    environment = WatchedEnvironment()
    words = words_of(environment.tasks("train")[0])
    spoken = says(words[0], "wrong", words[2])
    engine = FakeEngine(spoken, version=4)
    trajectory = run(environment, engine)
    assert trajectory.stop is Stop.DONE
    assert trajectory.failure == ""
    assert [turn.action.content for turn in trajectory.turns] == [words[0], "wrong", words[2]]
    assert sampled_of(trajectory) == spoken
    assert {turn.version for turn in trajectory.turns} == {4}
    assert environment.num_open == 0
    assert engine.released == ["s1"]


def test_a_reward_sits_on_the_turn_that_earned_it():
    environment = WatchedEnvironment()
    words = words_of(environment.tasks("train")[0])
    trajectory = run(environment, FakeEngine(says(words[0], "wrong", words[2])))
    assert [turn.observation.reward for turn in trajectory.turns] == [1 / 3, 0.0, 1 / 3]
    assert trajectory.reward == pytest.approx(2 / 3)


@pytest.mark.parametrize("max_turns", [2, 8])
def test_the_last_observation_is_recorded_but_prompts_nobody(max_turns):
    environment = WatchedEnvironment()
    trajectory = run(environment, FakeEngine(says("a", "b", "c")), max_turns=max_turns)
    (sequence,) = trajectory.sequences
    assert trajectory.turns[-1].observation.messages
    assert sequence.ids[-len(say("c")) :].tolist() == say("b" if max_turns == 2 else "c")


def test_an_environment_that_is_done_at_once_makes_a_trajectory_without_turns():
    class Over(WatchedEnvironment):
        def open(self, task, *, seed):
            session = super().open(task, seed=seed)

            async def start():
                return Observation(messages=(Message("user", "over"),), tools=(), reward=0.5, done=True)

            session.start = start
            return session

    trajectory = run(Over(), FakeEngine([]))
    assert trajectory.stop is Stop.DONE
    assert trajectory.turns == ()
    assert trajectory.sequences == ()
    assert trajectory.reward == 0.5


# ------------------------------------------------------------------------------------------------ limits, each with its stop


def test_max_turns():
    trajectory = run(WatchedEnvironment(), FakeEngine(says("a", "b", "c")), max_turns=2)
    assert trajectory.stop is Stop.MAX_TURNS
    assert len(trajectory.turns) == trajectory.max_turns == 2
    assert trajectory.stop.scored


def test_max_turn_tokens_ends_the_session_and_keeps_what_was_sampled():
    environment = WatchedEnvironment()
    long = say("a very long answer that never comes to an end")
    trajectory = run(environment, FakeEngine([say("a"), long]), max_turn_tokens=5)
    assert trajectory.stop is Stop.MAX_TURN_TOKENS
    assert sampled_of(trajectory)[-1] == long[:5]
    assert trajectory.turns[-1].observation == Observation(), "a cut action is not played"
    assert environment.num_open == 0


def test_max_tokens_while_speaking():
    environment = WatchedEnvironment()
    engine = FakeEngine([say("a"), say("b " * 200)])
    trajectory = run(environment, engine, max_tokens=60, max_turn_tokens=64)
    assert trajectory.stop is Stop.MAX_TOKENS
    assert sum(map(len, trajectory.sequences)) <= 60


def test_max_tokens_when_the_prompt_alone_fills_the_session():
    engine = FakeEngine(says("a"))
    trajectory = run(WatchedEnvironment(), engine, max_tokens=5)
    assert trajectory.stop is Stop.MAX_TOKENS
    assert trajectory.turns == ()
    assert engine.prompts == [], "the engine is not asked for what cannot fit"


def test_a_malformed_tool_call_gets_an_answer_that_says_what_was_wrong():
    environment = guess()
    secret = environment.tasks("train")[0].data["secret"]
    broken = [*CHAT.text.encode('<tool_call>{"name": "guess", "arg</tool_call>', begins=False), CHAT.end_id]
    engine = FakeEngine([broken, call("guess", number=secret)])
    trajectory = run(environment, engine)
    first = trajectory.turns[0]
    assert first.action.problem
    assert first.observation.invalid
    assert first.observation.messages == (Message("tool", first.action.problem),)
    assert first.action.problem in CHAT.text.decode(engine.prompts[1])
    assert (trajectory.stop, trajectory.reward, trajectory.num_invalid) == (Stop.DONE, 1.0, 1)


@pytest.mark.parametrize("max_invalid", [0, 2])
def test_invalid_actions_are_counted_and_limited(max_invalid):
    wrong = call("gess", number=3)
    trajectory = run(guess(max_turns=9), FakeEngine([wrong] * 9), max_invalid=max_invalid, max_turns=9)
    assert trajectory.stop is Stop.INVALID
    assert trajectory.num_invalid == len(trajectory.turns) == max_invalid + 1
    assert trajectory.stop.scored, "it is the policy that failed: reward 0 teaches it"


# ------------------------------------------------------------------------------------------------ the world fails


BAD_ANSWERS = ("nan", "nothing", "number")


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize(
    ("place", "fault"),
    [
        *[(place, fault) for place in ("open", "start", "act") for fault in ("raise", "exit")],
        *[(place, fault) for place in ("start", "act") for fault in BAD_ANSWERS],
    ],
)
def test_an_environment_that_fails_is_recorded_and_never_rewarded(place, fault, blocking):
    environment = WatchedEnvironment(fault=fault, fault_in=place, blocking=blocking)
    engine = FakeEngine(says("a", "b", "c"))
    trajectory = run(environment, engine)
    assert trajectory.stop is Stop.FAILED
    assert trajectory.failure.startswith("EnvironmentFailed: ")
    assert place in trajectory.failure
    assert not trajectory.stop.scored
    assert not trajectory.success
    assert environment.num_open == 0
    assert engine.released == ["s1"]


def test_what_was_sampled_before_a_failure_is_not_lost():
    trajectory = run(WatchedEnvironment(fault="raise", fault_in="act"), FakeEngine(says("first")))
    assert trajectory.stop is Stop.FAILED
    assert [turn.action.content for turn in trajectory.turns] == ["first"]
    assert sampled_of(trajectory) == says("first")


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("place", ["start", "act"])
def test_an_environment_that_hangs_ends_as_turn_timeout(place, blocking):
    engine = FakeEngine(says("a", "a", "a"))

    def attempt(limit_s):
        engine.released.clear()
        environment = WatchedEnvironment(fault="hang", fault_in=place, blocking=blocking, hang_s=5 * limit_s)
        return run(environment, engine, turn_timeout_s=limit_s)

    doing = {"start": "starting", "act": "acting"}[place]
    trajectory = within_limit(attempt, failure=lambda limit_s: f"TurnTimeout: {doing} exceeded {limit_s:g} s")
    assert trajectory.stop is Stop.TURN_TIMEOUT
    assert not trajectory.stop.scored
    assert engine.released == ["s1"]


def test_an_environment_that_hangs_while_it_opens_ends_as_turn_timeout():
    class Slow(WatchedEnvironment):
        async def open(self, task, *, seed):
            await asyncio.sleep(60)

    trajectory = run(Slow(), FakeEngine([]), turn_timeout_s=0.1)
    assert (trajectory.stop, trajectory.failure) == (Stop.TURN_TIMEOUT, "TurnTimeout: opening exceeded 0.1 s")


def test_waiting_for_a_free_slot_is_neither_the_turns_time_nor_the_sessions():
    class Queueing(LocalClient):
        async def open(self, task, *, seed, timeout_s):
            await asyncio.sleep(1.2 * timeout_s)
            return await super().open(task, seed=seed, timeout_s=timeout_s)

    environment = WatchedEnvironment()
    words = words_of(environment.tasks("train")[0])

    def attempt(limit_s):
        async def main():
            limits = {"turn_timeout_s": limit_s, "session_timeout_s": 1.1 * limit_s}
            context = make_context(environment, FakeEngine(says(*words)), **limits)
            context = replace(context, client=Queueing([environment]))
            return await play(Order("s1", environment.tasks("train")[0], seed=(1,)), context=context)

        return asyncio.run(main())

    trajectory = within_limit(attempt, failure=lambda _: "")
    assert (trajectory.stop, trajectory.reward) == (Stop.DONE, pytest.approx(1))


def test_a_session_that_takes_too_long_in_all_says_what_it_was_doing():
    environment = WatchedEnvironment(fault="hang", hang_s=60.0)

    def attempt(limit_s):
        return run(environment, FakeEngine(says("a")), session_timeout_s=limit_s)

    exceeded = "EnvironmentFailed: the session exceeded {:g} s while acting"
    trajectory = within_limit(attempt, failure=exceeded.format)
    assert trajectory.stop is Stop.SESSION_TIMEOUT
    assert environment.num_open == 0


def test_a_slow_engine_is_not_called_a_failure_of_the_environment():
    engine = FakeEngine(says("a"), latency_s=60.0)

    def attempt(limit_s):
        engine.num_cancelled = 0
        return run(WatchedEnvironment(), engine, session_timeout_s=limit_s, turn_timeout_s=0.9 * limit_s)

    trajectory = within_limit(attempt, failure="EngineFailed: the session exceeded {:g} s while generating".format)
    assert trajectory.stop is Stop.SESSION_TIMEOUT
    assert engine.num_cancelled == 1


def test_an_engine_that_fails_is_named():
    environment = WatchedEnvironment()
    trajectory = run(environment, FakeEngine(says("a", "b"), fail_on=[1]))
    assert trajectory.stop is Stop.FAILED
    assert trajectory.failure.startswith("EngineFailed: ")
    assert len(trajectory.turns) == 1
    assert environment.num_open == 0


def test_a_megabyte_is_cut_and_the_model_is_told():
    engine = FakeEngine(says("a", "b", "c"))
    environment = WatchedEnvironment(fault="megabyte")
    trajectory = run(environment, engine, max_turns=2, max_observation_chars=50)
    said = trajectory.turns[0].observation.messages[0].content
    assert said.endswith("[999950 more characters cut]")
    assert trajectory.metrics["cut"] == 1.0
    assert "more characters cut" in CHAT.text.decode(engine.prompts[1])


def test_half_a_surrogate_pair_fails_the_session_or_is_played_but_never_raises():
    trajectory = run(WatchedEnvironment(fault="surrogate"), FakeEngine(says("a", "b", "c")), max_turns=2)
    assert trajectory.stop in (Stop.FAILED, Stop.MAX_TURNS)


def test_a_close_that_fails_or_hangs_does_not_lose_the_trajectory(monkeypatch):
    monkeypatch.setattr(play_module, "CLOSE_TIMEOUT_S", 0.1)
    for fault in ("raise", "hang"):
        environment = WatchedEnvironment(fault=fault, fault_in="close", hang_s=1.0)
        assert run(environment, FakeEngine(says("a", "b", "c"))).stop is Stop.DONE


# ------------------------------------------------------------------------------------------------ our caller, and our bugs


@pytest.mark.parametrize("busy", ["engine", "environment"])
def test_a_cancelled_caller_leaves_no_session_and_no_cache_behind(busy):
    environment = WatchedEnvironment(latency_s=60.0 if busy == "environment" else 0.0)
    engine = FakeEngine(says("a", "b", "c"), latency_s=60.0 if busy == "engine" else 0.0)

    async def main():
        context = make_context(environment, engine, turn_timeout_s=100, session_timeout_s=100)
        playing = asyncio.create_task(play(Order("s1", environment.tasks("train")[0], seed=(1,)), context=context))
        while not context.activity.longest():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        await context.client.close()
        return context

    context = asyncio.run(main())
    assert environment.sessions
    assert environment.num_open == 0
    assert engine.released == ["s1"]
    assert context.activity.longest() == ()


def test_a_caller_that_is_cancelled_while_the_session_closes_does_not_keep_it_open():
    environment = WatchedEnvironment(turns=1, fault="hang", fault_in="close", hang_s=1.0)
    engine = FakeEngine(says("a"))

    async def main():
        context = make_context(environment, engine)
        playing = asyncio.create_task(play(Order("s1", environment.tasks("train")[0], seed=(1,)), context=context))
        while not (environment.sessions and environment.sessions[0].turn == 1):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.03)  # it is done, and takes its time to close
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        await context.client.close()

    asyncio.run(main())
    assert environment.num_open == 0
    assert engine.released == ["s1"]


@pytest.mark.parametrize("bug", [KeyError("ours"), TimeoutError("ours, and not the session's clock")])
def test_a_bug_of_ours_is_raised_and_not_taken_for_a_bad_session(bug, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise bug

    environment, engine = WatchedEnvironment(), FakeEngine(says("a"))
    monkeypatch.setattr(CHAT, "parse", broken)
    with pytest.raises(type(bug), match="ours"):
        run(environment, engine)
    assert environment.num_open == 0
    assert engine.released == ["s1"]


@pytest.mark.parametrize("blocking", [True, False])
def test_sessions_leave_nothing_behind_that_only_the_collector_could_free(blocking):
    """It lets no thread run meanwhile, and is kept from looking (garbage.py)."""
    environment = FakeEnvironment(turns=3, blocking=blocking)

    async def unreachable(sessions: int) -> int:
        context, task = make_context(environment, FakeEngine(says("go", "go", "go"))), environment.tasks("train")[0]
        for number in range(sessions):
            assert (await play(Order(str(number), task, seed=(1,)), context=context)).stop is not Stop.FAILED
        found = gc.collect()
        await context.client.close()
        return found

    asyncio.run(unreachable(2))  # what is made once
    gc.collect()
    gc.disable()
    try:
        few, many = (asyncio.run(unreachable(sessions)) for sessions in (2, 42))
    finally:
        gc.enable()
    assert many - few < 40 * 10, "a turn of ours leaves none; other threads may leave some meanwhile"
