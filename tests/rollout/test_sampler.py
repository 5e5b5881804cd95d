import asyncio

from ludus.engines.engine import Answer
from ludus.rollout.sampler import ChatSampler, Prompt, encodable
from ludus.types import CURRENT, Action, Sampling, ToolCall


class Babbling:
    async def answer(self, messages, *, tools, sampling, session_id):
        return Answer(
            Action("a\ud800b", (ToolCall("gu\udfffess", {"n": 1}, id="\ud800"),), problem="\udfff"), stop="end"
        )


def test_what_no_prompt_could_repeat_becomes_a_question_mark():
    options = {"sampling": Sampling(max_tokens=1), "session_id": "s", "policy": CURRENT, "session": None}
    asking = ChatSampler(Babbling()).sample(Prompt(), **options)
    action = asyncio.run(asking).action
    assert action == Action("a?b", (ToolCall("gu?ess", {"n": 1}, id="?"),), problem="?")


def test_what_people_write_stays_as_it_is():
    action = Action("naïve 😀 語", (ToolCall("guess", {"n": "é"}),))
    assert encodable(action) == action
