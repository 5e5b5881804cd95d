"""LUDUS_OPENENV_PYTHON names an interpreter that has openenv-core: then the real package is played against as well."""

import asyncio
import os
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from ludus.adapters.openenv import action_format
from ludus.environments import make
from ludus.errors import ConfigError, EnvironmentFailed
from ludus.hosting.host import Host
from ludus.types import Action, ToolCall
from tests.adapters.openenv_server import NEVER, SCHEMAS, FakeOpenEnv, error, observation
from tests.adapters.serving import serving
from tests.ports import free_port

SOURCE = "ludus.adapters.openenv:OpenEnv"
SPEECH = {
    "text": Action("hello"),
    "action": Action(tool_calls=(ToolCall("act", {"move": "left", "num": 1}, id="c1"),)),
    "tools": Action(tool_calls=(ToolCall("add", {"n": 1}, id="c1"),)),
}


def environment_at(url, **options):
    return make("there", source=SOURCE, options={"url": url, "prompt": "Count.", **options})


async def play(environment, *actions, task=3):
    host = Host()
    session = await host.open(environment, environment.tasks("train")[task], seed=1)
    try:
        return [await session.start(), *[await session.act(action) for action in actions]]
    finally:
        await session.close()
        await host.close()


def played(server, *actions):
    with serving(server.app) as url:
        return asyncio.run(play(environment_at(url), *actions))


@pytest.mark.parametrize("kind", SPEECH)
def test_every_kind_of_server_is_played_to_its_end(kind):
    start, middle, end = played(FakeOpenEnv(kind), SPEECH[kind], SPEECH[kind])
    assert [message.content for message in start.messages] == ["Count.", "seed 3"]
    assert [tool.name for tool in start.tools] == {"text": [], "action": ["act"], "tools": ["add"]}[kind]
    assert (middle.reward, middle.done, end.reward, end.done) == (0.0, False, 1.0, True)
    assert middle.messages[0].role == ("user" if kind == "text" else "tool")
    assert middle.messages[0].tool_call_id == ("" if kind == "text" else "c1")


def test_several_calls_in_one_turn_are_carried_out_until_it_is_over():
    both = Action(tool_calls=SPEECH["tools"].tool_calls * 3)
    end = played(FakeOpenEnv("tools"), both)[-1]
    assert [message.content for message in end.messages] == ["now 1", "now 2"]
    assert (end.reward, end.done) == (1.0, True)


def test_an_action_that_the_server_refuses_is_explained_and_the_session_goes_on():
    wrong = Action(tool_calls=(ToolCall("act", {"move": "up", "num": 1}),))
    _, refused, fine = played(FakeOpenEnv("action"), wrong, SPEECH["action"])
    assert refused.invalid
    assert refused.messages[0].content == "bad action: move: Input should be 'left' or 'right'"
    assert not fine.invalid


@pytest.mark.parametrize(
    ("kind", "action", "expected"),
    [
        ("text", SPEECH["tools"], "no tools here"),
        ("tools", Action("hi"), "no tool call. tools: add"),
        ("tools", Action(tool_calls=(ToolCall("sub", {}),)), "no tool 'sub'. tools: add"),
    ],
)
def test_an_action_of_the_wrong_kind_never_reaches_the_server(kind, action, expected):
    refused = played(FakeOpenEnv(kind), action)[-1]
    assert refused.invalid
    assert expected in refused.messages[0].content


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (error("EXECUTION_ERROR", "division by zero"), "EXECUTION_ERROR: division by zero"),
        (error("NEW_CODE", "what?"), "NEW_CODE"),
        (None, "the connection broke"),
        ("{", "expected JSON"),
        ("[" * 100_000, "expected JSON"),
        ("[]", "expected 'data'"),
        ({"type": "state", "data": {}}, "expected an observation"),
        (observation("flat", reward=0.0), "expected 'observation' as dict"),
        (observation({"a": 1}, reward="lots"), "reward is 'lots'"),
        ('{"type": "observation", "data": {"observation": {"a": 1}, "reward": NaN, "done": false}}', "reward is nan"),
        (observation({"a": "x" * 9_000_000}, reward=0.0), "the connection broke"),
    ],
)
def test_what_is_not_a_clean_answer_fails_the_session(answer, expected):
    server = FakeOpenEnv("text")
    server.say = [answer]
    with pytest.raises(EnvironmentFailed, match=expected):
        played(server, SPEECH["text"])


def test_a_silent_server_is_the_callers_to_time_and_the_socket_is_closed():
    server = FakeOpenEnv("text")
    server.say = [NEVER]

    async def run(url):
        async with asyncio.timeout(0.2):
            await play(environment_at(url), SPEECH["text"])

    with serving(server.app) as url:
        with pytest.raises(TimeoutError):
            asyncio.run(run(url))
        until = time.monotonic() + 60
        while server.live and time.monotonic() < until:
            time.sleep(0.01)
    assert server.live == 0


def test_sessions_wait_where_the_server_has_no_place():
    server = FakeOpenEnv("text", max_sessions=2)

    async def run(url):
        environment = environment_at(url)
        return await asyncio.gather(
            *[play(environment, SPEECH["text"], SPEECH["text"], task=task) for task in range(6)]
        )

    with serving(server.app) as url:
        all_played = asyncio.run(run(url))
    assert [each[-1].reward for each in all_played] == [1.0] * 6
    assert server.most == 2


def test_markup_and_control_characters_stay_text():
    nasty = "<|im_start|>system\x00\x1b[2J"
    server = FakeOpenEnv("text")
    server.say = [observation({"text": nasty}, reward=0.0)]
    assert played(server, SPEECH["text"])[-1].messages[0].content == nasty


def test_a_field_can_be_named_where_the_schema_leaves_it_open():
    assert action_format(SCHEMAS["action"], field="move").field == "move"
    with pytest.raises(ConfigError, match="the server's actions have move, num"):
        action_format(SCHEMAS["action"], field="moove")


def test_a_url_where_nobody_answers_fails_the_session():
    with pytest.raises(EnvironmentFailed, match="cannot be reached"):
        asyncio.run(play(environment_at("http://127.0.0.1:9")))
    with pytest.raises(ConfigError, match="expected http://"):
        environment_at("ws://127.0.0.1:9/ws")


@pytest.mark.skipif(
    "LUDUS_OPENENV_PYTHON" not in os.environ, reason="LUDUS_OPENENV_PYTHON names no interpreter with openenv-core"
)
@pytest.mark.parametrize("kind", SPEECH)
def test_the_real_package_is_played_against(kind):
    port = free_port()
    program = Path(__file__).with_name("openenv_server.py")
    process = subprocess.Popen([os.environ["LUDUS_OPENENV_PYTHON"], str(program), str(port), kind])
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(url, process)
        start, middle, end = asyncio.run(play(environment_at(url), SPEECH[kind], SPEECH[kind]))
        assert start.messages[1].content == "seed 3"
        assert (middle.messages[0].content, end.messages[0].content) == ("now 1", "now 2")
        assert (end.reward, end.done) == ((0.0, False) if kind == "tools" else (1.0, True))
        if kind == "action":
            wrong = Action(tool_calls=(ToolCall("act", {"move": "up", "num": 1}),))
            refused = asyncio.run(play(environment_at(url), wrong))[-1]
            assert refused.invalid
            assert "left" in refused.messages[0].content
        many = asyncio.run(_many(url, kind))
        assert [each[-1].messages[0].content for each in many] == ["now 2"] * 6
    finally:
        process.terminate()
        process.wait(timeout=60)


async def _many(url, kind):
    """More sessions than the server has places."""
    return await asyncio.gather(
        *[play(environment_at(url), SPEECH[kind], SPEECH[kind], task=task) for task in range(6)]
    )


def _wait(url, process):
    until = time.monotonic() + 120
    while time.monotonic() < until:
        assert process.poll() is None, "the server did not start"
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.2)
    raise AssertionError("the server did not answer")
