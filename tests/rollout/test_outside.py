"""Outside models in a session of the policy's: their words become tokens that are read, stored and carried out, and never trained."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest

from ludus.algorithms import make_algorithm
from ludus.config import AlgorithmConfig, RolloutConfig
from ludus.controller.client.local import LocalClient
from ludus.engines.engine import Answer
from ludus.engines.fake import FakeEngine
from ludus.environments import Reply, registry
from ludus.errors import TrainerFailed
from ludus.rollout.context import RolloutContext
from ludus.rollout.play import play
from ludus.rollout.sampler import ChatSampler, PolicySampler, Prompt
from ludus.store.trajectories import trajectory_from_dict, trajectory_to_dict
from ludus.types import Action, Group, Message, Order, Sampling, Stop, ToolCall
from tests.rollout.playing import CHAT, LIMITS, call


class Echo:
    """Say something."""

    max_turns = 4
    tasks = {"train": [{}]}

    def setup(self, task, rng):
        return "go"

    def act(self, text):
        return Reply(f"heard {text}", done=text == "stop")


class Talker:
    """A TextEngine that says what it is told to, and remembers what it was told."""

    def __init__(self, *said, stop="end"):
        self.said, self.stop, self.heard = list(said), stop, []

    async def answer(self, messages, *, tools, sampling, session_id):
        self.heard.append((tuple(messages), tuple(tools), sampling))
        action = self.said[min(len(self.heard), len(self.said)) - 1]
        return Answer(action, self.stop, num_tokens=99)

    async def close(self):
        return None


def play_with(talker, environment, *, ours=(), chance=1.0, **limits):
    """One session; with chance 1 the outside model says everything."""
    engine = FakeEngine(lambda ids, turn: ours[min(turn, len(ours) - 1)])
    sampler = PolicySampler(engine, endpoints={"gpt": ChatSampler(talker, chat=CHAT)})
    client = LocalClient([environment])
    context = RolloutContext(client, sampler, CHAT, RolloutConfig(**{**LIMITS, **limits}))

    async def main():
        try:
            (task, *_) = environment.tasks("train")
            return await play(Order("s", task, seed=(3,), others={"gpt": chance}), context=context)
        finally:
            await client.close()

    return asyncio.run(main())


@pytest.fixture
def echo():
    return registry.make("echo", source=f"{__name__}:Echo")


@pytest.fixture
def guess():
    return registry.make("guess", options={"numbers": 8})


def test_its_words_are_what_is_carried_out_and_what_the_tokens_say_under_its_name_without_logprobs(echo):
    trajectory = play_with(Talker(Action("seven"), Action("stop")), echo)
    assert trajectory.stop is Stop.DONE
    assert [turn.action.content for turn in trajectory.turns] == ["seven", "stop"]
    assert {(turn.policy, turn.version) for turn in trajectory.turns} == {("gpt", 0)}
    (sequence,) = trajectory.sequences
    assert np.isnan(sequence.logprobs[sequence.sampled]).all()
    assert set(sequence.versions[sequence.sampled]) == {0}
    for turn in trajectory.turns:
        ids = sequence.ids[sequence.sampled & (sequence.turns == turn.index)].tolist()
        assert ids == CHAT.encode_action(turn.action)
        assert turn.num_tokens == len(ids), "in the policy's tokens, not in the server's"


def test_a_call_is_written_as_the_policy_writes_calls_and_read_back_from_the_tokens(guess):
    said = Action("let me see", (ToolCall("guess", {"number": 3}, id="c7"),))
    trajectory = play_with(Talker(said), guess)
    assert trajectory.turns[0].action.tool_calls == (ToolCall("guess", {"number": 3}),)
    assert "let me see" in trajectory.turns[0].action.content
    assert not trajectory.turns[0].observation.invalid


def test_a_call_that_its_server_left_in_the_text_is_one(guess):
    written = '<tool_call>{"name": "guess", "arguments": {"number": 3}}</tool_call>'
    assert play_with(Talker(Action(written)), guess).turns[0].action.tool_calls == (ToolCall("guess", {"number": 3}),)


def test_it_hears_the_policys_turns_with_every_call_answered(guess):
    talker = Talker(Action("", (ToolCall("guess", {"number": 1}, id="c"),)))
    trajectory = play_with(talker, guess, ours=[call("guess", number=2)], chance=0.5, max_turns=4)
    assert {turn.policy for turn in trajectory.turns} == {"current", "gpt"}
    told = max((messages for messages, _, _ in talker.heard), key=len)
    calls = {each.id for message in told if message.role == "assistant" for each in message.tool_calls}
    results = [message.tool_call_id for message in told if message.role == "tool"]
    assert calls
    assert "" not in calls
    assert sorted(results) == sorted(calls), "a strict server refuses a call without a result"
    said = [message.content for message in told if message.role == "tool"]
    assert "not carried out" not in said, "and each result is what the world said to that call"


def test_what_is_too_long_in_the_policys_tokens_is_cut_there_and_ends_the_session(echo):
    trajectory = play_with(Talker(Action("many words " * 40)), echo, max_turn_tokens=12)
    assert trajectory.stop is Stop.MAX_TURN_TOKENS
    assert trajectory.turns[0].num_tokens == 12


def test_what_its_server_cut_off_is_no_whole_turn(echo):
    trajectory = play_with(Talker(Action("half a"), stop="length"), echo)
    assert trajectory.stop is Stop.MAX_TURN_TOKENS
    (sequence,) = trajectory.sequences
    assert sequence.ids[-1] not in CHAT.stop_ids


def test_control_tokens_in_its_words_are_words(echo):
    text = CHAT.text.decode([CHAT.end_id])
    trajectory = play_with(Talker(Action(f"a {text} b"), Action("stop")), echo)
    assert trajectory.turns[0].action.content == f"a {text} b"
    (sequence,) = trajectory.sequences
    first = sequence.ids[sequence.sampled & (sequence.turns == 0)].tolist()
    assert first.count(CHAT.end_id) == 1


def test_missing_logprobs_survive_the_store_are_refused_by_the_loss_and_taken_where_they_are_masked(echo):
    mixed = play_with(Talker(Action("x")), echo, ours=[CHAT.encode_action(Action("y"))], chance=0.4)
    assert {turn.policy for turn in mixed.turns} == {"current", "gpt"}
    stored = trajectory_from_dict(trajectory_to_dict(mixed))
    assert np.array_equal(stored.sequences[0].logprobs, mixed.sequences[0].logprobs, equal_nan=True)
    group = Group("g", mixed.task, (mixed, replace(mixed, id="other")))
    with pytest.raises(TrainerFailed, match="lacks the logprob"):
        make_algorithm(AlgorithmConfig(filter="none")).batch([group])
    masked = make_algorithm(AlgorithmConfig(filter="none", off_policy="mask")).batch([group])
    own = sum(turn.num_tokens for turn in mixed.turns if turn.policy == "current")
    assert [sequence.num_sampled for sequence in masked.sequences] == [own, own]
    assert all(math.isfinite(s.logprobs[s.sampled].sum()) for s in masked.sequences)


def test_one_with_token_ids_is_stored_under_its_own_name_with_its_own_logprobs():
    teacher = PolicySampler(FakeEngine(lambda ids, turn: [5, 6], version=4))
    sampler = PolicySampler(FakeEngine(), endpoints={"teacher": teacher})
    options = {"session_id": "s", "policy": "teacher", "session": None}
    sampling = Sampling(max_tokens=8, stop_ids=(6,))
    completion = asyncio.run(sampler.sample(Prompt([1, 2]), sampling=sampling, **options))
    assert (completion.policy, completion.ids, completion.versions) == ("teacher", (5, 6), (4, 4))
    assert all(map(math.isfinite, completion.logprobs))


def test_messages_before_the_first_turn_are_told_as_they_were(echo):
    talker = Talker(Action("stop"))
    play_with(talker, echo)
    messages, tools, _ = talker.heard[0]
    assert messages[-1] == Message("user", "go")
    assert tools == ()
