"""The chat engine over real HTTP: OpenAI's words go out and come back as ours."""

from __future__ import annotations

import asyncio

import pytest

from ludus.engines.chat_server import ChatServer
from ludus.errors import EngineFailed, EngineLost
from ludus.openai_format import tool_to_openai
from ludus.types import Action, Message, Sampling, Tool, ToolCall
from tests.launch.chat_stub import ChatStub

GUESS = Tool("guess", "Guess.", {"type": "object", "properties": {"number": {"type": "integer"}}})
ASKED = (Message("system", "Play."), Message("user", "1 to 9?"))


def ask(url, *, tools=(GUESS,), messages=ASKED, **options):
    async def main():
        engine = ChatServer(url, **options)
        try:
            sampling = Sampling(max_tokens=7, temperature=0.5, seed=2**60 + 5)
            return await engine.answer(messages, tools=tools, sampling=sampling, session_id="s1")
        finally:
            await engine.close()

    return asyncio.run(main())


def test_what_is_asked_is_sent_and_what_is_said_comes_back():
    call = {"id": "c7", "type": "function", "function": {"name": "guess", "arguments": '{"number": 4}'}}
    with ChatStub(lambda body: {"content": " Four. ", "tool_calls": [call]}) as stub:
        answer = ask(stub.url)
    assert answer.action == Action("Four.", (ToolCall("guess", {"number": 4}, id="c7"),))
    assert (answer.stop, answer.num_prompt_tokens, answer.num_tokens, answer.policy) == ("end", 10, 3, "outside")
    (body,) = stub.bodies
    assert body["model"] == "stub"
    assert body["messages"] == [{"role": "system", "content": "Play."}, {"role": "user", "content": "1 to 9?"}]
    assert body["tools"] == [tool_to_openai(GUESS)]
    assert (body["max_tokens"], body["temperature"], body["user"]) == (7, 0.5, "s1")
    assert 0 <= body["seed"] < 2**31


def test_without_tools_the_field_is_left_out_and_a_server_need_not_count():
    with ChatStub(lambda body: {"content": "hm"}, usage=False) as stub:
        answer = ask(stub.url, tools=(), model="named")
    assert "tools" not in stub.bodies[0]
    assert stub.bodies[0]["model"] == "named"
    assert answer.num_tokens == 0


def test_a_server_that_is_not_there_or_refuses_is_named(monkeypatch):
    monkeypatch.setattr("ludus.engines.http.BACKOFF_S", 0.001)
    with pytest.raises(EngineLost, match="is the server up"):
        ask("http://127.0.0.1:9/v1")
    with ChatStub(lambda body: {}, answers=0, status=401) as stub, pytest.raises(EngineFailed, match="LUDUS_API_KEY"):
        ask(stub.url)
    with ChatStub(lambda body: {}, answers=0, status=404) as stub, pytest.raises(EngineFailed, match="status 404"):
        ask(stub.url, model="no-such")
