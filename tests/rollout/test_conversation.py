"""Sessions whose model answers in text alone: they are played like the others, and have nothing that could be trained."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from ludus.config import RolloutConfig
from ludus.controller.client.local import LocalClient
from ludus.engines.engine import Answer
from ludus.environments import registry
from ludus.environments.fake import FakeEnvironment
from ludus.rollout.context import RolloutContext
from ludus.rollout.conversation import Conversation, answering
from ludus.rollout.play import play
from ludus.rollout.sampler import SolverSampler
from ludus.rollout.tool_calls import read_from_text
from ludus.types import Action, Message, Order, Stop, Tool, ToolCall
from tests.rollout.playing import LIMITS

GUESS = Tool("guess", "Guess.", {"type": "object", "properties": {"number": {"type": "integer"}}})
CALL = ToolCall("guess", {"number": 4}, id="c1")


class Scripted:
    """Gives these answers in turn, and remembers what it was asked."""

    def __init__(self, *answers: Answer) -> None:
        self.answers, self.asked = list(answers), []

    async def sample(self, prompt, *, sampling, session_id, policy, session):
        self.asked.append((prompt.messages, prompt.tools, sampling))
        return self.answers.pop(0)

    async def release(self, session_id):
        return None


def said(action, **counts):
    return Answer(action, "end", **{"num_prompt_tokens": 5, "num_tokens": 2, **counts})


def play_with(environment, sampler, **limits):
    async def main():
        client = LocalClient([environment])
        context = RolloutContext(client, sampler, None, RolloutConfig(**{**LIMITS, **limits}))
        try:
            task = environment.tasks("test")[0]
            return await play(Order("s", task, seed=(1,)), context=context)
        finally:
            await client.close()

    return asyncio.run(main())


def test_a_session_in_text_is_scored_and_has_nothing_to_train_on():
    environment = FakeEnvironment(turns=2, blocking=False)
    words = environment.tasks("test")[0].data["words"]
    sampler = Scripted(*(said(Action(word)) for word in words))
    trajectory = play_with(environment, sampler)
    assert (trajectory.stop, trajectory.reward) == (Stop.DONE, 1.0)
    assert trajectory.sequences == ()
    assert trajectory.oldest_version is None
    assert [turn.policy for turn in trajectory.turns] == ["outside"] * 2
    assert (trajectory.num_sampled, trajectory.turns[0].num_prompt_tokens) == (4, 5)


def test_the_model_sees_its_own_words_and_the_noise_differs_from_turn_to_turn():
    environment = FakeEnvironment(turns=2, blocking=False)
    sampler = Scripted(said(Action("first words")), said(Action("more")))
    play_with(environment, sampler)
    (before, _, one), (after, _, other) = sampler.asked
    assert after[: len(before)] == before
    assert after[len(before)] == Message("assistant", "first words")
    assert one.seed != other.seed


def test_a_solver_plays_in_text_without_any_model():
    trajectory = play_with(registry.make("guess"), SolverSampler(mistakes=0.0))
    assert trajectory.success
    assert {turn.policy for turn in trajectory.turns} == {"solver"}
    assert trajectory.sequences == ()


def test_the_servers_count_of_tokens_ends_a_session_that_is_too_long():
    environment = FakeEnvironment(turns=3, blocking=False)
    trajectory = play_with(
        environment, Scripted(said(Action("x"), num_prompt_tokens=90, num_tokens=10)), max_tokens=100
    )
    assert trajectory.stop == Stop.MAX_TOKENS


def test_an_answer_that_was_cut_off_ends_the_session_as_such():
    environment = FakeEnvironment(turns=3, blocking=False)
    trajectory = play_with(environment, Scripted(replace(said(Action("x")), stop="length")))
    assert trajectory.stop == Stop.MAX_TURN_TOKENS


def test_a_call_that_the_server_left_in_the_text_is_read():
    written = '<tool_call>{"name": "guess", "arguments": {"number": 4}}</tool_call>'
    assert read_from_text(Action(written)).tool_calls == (ToolCall("guess", {"number": 4}),)
    assert read_from_text(Action('<tool_call>{"name": "guess", "argu')).problem
    assert read_from_text(Action("four, I think")) == Action("four, I think")
    assert read_from_text(Action("", (CALL,))).tool_calls == (CALL,), "what the server has read is taken as it is"


def test_without_tools_on_offer_nothing_is_a_call():
    written = '<tool_call>{"name": "guess", "arguments": {"number": 4}}</tool_call>'
    conversation = Conversation(None)
    conversation.start((Message("user", "?"),), ())
    assert conversation.add(said(Action(written)), turn=0).action == Action(written)


def test_every_open_call_gets_a_result_and_a_result_without_a_call_is_said_by_the_user():
    result, loose = Message("tool", "higher", tool_call_id="c1"), Message("tool", "no such call")
    assert answering((result, Message("user", "go on")), ["c1"]) == [result, Message("user", "go on")]
    assert answering((loose,), []) == [Message("user", "no such call")]
    missing = Message("tool", "not carried out", tool_call_id="c2")
    assert answering((result, loose), ["c1", "c2"]) == [result, missing, Message("user", "no such call")]
