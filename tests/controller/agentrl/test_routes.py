"""/api as AgentRL's clients call it, without the clients."""

from __future__ import annotations

import asyncio
import json
import threading

import aiohttp
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ludus.controller.agentrl import fleet
from tests.controller.agentrl.model import call
from tests.controller.agentrl.peers import Api, Plane, until


@pytest.fixture
def api(plane: Plane) -> Api:
    return Api(plane.api)


def guess(arguments: str) -> dict:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [call("guess") | {"function": {"name": "guess", "arguments": arguments}}],
    }


# --------------------------------------------------------------------------------- our environments


def test_rewards_add_up_because_only_the_last_one_counts_with_them(api):
    number, start = api.start("half", 3)
    assert [message["role"] for message in start["messages"]] == ["system", "user"]
    assert (start["status"], start["finish"], start["tools"]) == ("running", False, [])
    thought = api.say(number, "let me think").json()
    assert (thought["reward"], thought["status"], thought["finish"]) == (0.5, "running", False)
    right = api.say(number, "6").json()
    assert (right["reward"], right["status"], right["finish"]) == (1.0, "completed", True)
    assert api.say(number, "6").status_code == 400, "it is over"


def test_our_limit_of_turns_is_theirs_too(plane, api):
    number, _ = api.start("half-std", 0)
    answers = [api.say(number, "no").json() for _ in range(4)]
    assert [answer["status"] for answer in answers] == ["running"] * 3 + ["task limit reached"]
    until(lambda: not plane.controller.roster.sessions, what="the end of the session")


def test_an_environment_that_fails_is_a_task_error_and_no_reward(api):
    number, _ = api.start("half", 0)
    failed = api.say(number, "fail").json()
    assert (failed["status"], failed["finish"], failed["reward"]) == ("task error", True, 0.0)
    assert "the environment fails" in failed["result"]


def test_a_call_that_cannot_be_read_is_answered_and_the_session_goes_on_to_win(api):
    number, start = api.start("guess", 0)
    assert start["tools"][0]["function"]["name"] == "guess"
    bad = api.say(number, guess("{broken")).json()
    assert bad["messages"][0]["role"] == "tool"
    assert bad["messages"][0]["tool_call_id"] == "call-guess"
    assert "no JSON" in bad["messages"][0]["content"]
    wrong = api.say(number, guess('{"number": 0}')).json()
    left = wrong["messages"][0]["content"].split("left ")[1].split()
    while not (answer := api.say(number, guess(json.dumps({"number": int(left[len(left) // 2])}))).json())["finish"]:
        left = answer["messages"][0]["content"].split("left ")[1].split()
    assert (answer["status"], answer["reward"]) in [("completed", 1.0), ("task limit reached", 0.0)]


def test_both_splits_of_our_environments_have_their_names(api):
    assert api.get("get_indices", name="half").json() == [0, 1, 2, 3, 4, 5]
    assert api.get("get_indices", name="half-std").json() == [0, 1, 2, 3, 4, 5]
    assert api.get("get_indices", name="half-env_train").json() == []
    assert len(api.get("get_indices", name="guess-env_train").json()) > len(api.get("get_indices", name="guess").json())


def test_a_task_can_be_named_by_its_id(api):
    number, start = api.start("half", "half/test/4")
    assert start["messages"][1]["content"] == "number 4"
    api.cancel(number)


# ------------------------------------------------------------------------------------ their workers


def test_indices_follow_their_rules(has, api):
    has("worded")
    assert api.get("get_indices", name="worded").json() == [f"n{n}" for n in range(5)]
    number, start = api.start("worded", 2)
    assert start["messages"][-1]["content"] == "number 2", "an int is a position where all indices are strings"
    api.cancel(number)
    has("double-std")
    number, start = api.start("double-std", -1, custom_task={"number": 21})
    assert start["messages"][-1]["content"] == "number 21"
    assert api.say(number, "42").json()["reward"] == 1
    for name, index in [
        ("double-std", -1),
        ("double-std", 99),
        ("worded", "n99"),
        ("worded", 99),
        ("half", -1),
        ("half", 6),
        ("half", "x"),
    ]:
        assert api.post("start_sample", {"name": name, "index": index}).status_code == 400


def test_fields_that_nobody_knows_survive_both_ways(has, api):
    has("double-std")
    number, _ = api.start("double-std", 1)
    answer = api.say(
        number, {"role": "assistant", "content": "?", "reasoning_content": "hm", "extra": {"a": [1]}}
    ).json()
    message = answer["messages"][0]
    assert message["mood"] == "sad"
    assert json.loads(message["content"].removeprefix("wrong: ")) == {
        "content": "?",
        "reasoning_content": "hm",
        "extra": {"a": [1]},
    }
    assert api.say(number, "2").json()["metrics"] == {"score": 0.5, "trace": ["any", "thing"]}


def test_who_finds_no_slot_waits_for_one_and_only_then_gets_a_400(has, api, monkeypatch):
    plane = has("shelf")
    number, _ = api.start("shelf", 0)  # it has one slot
    monkeypatch.setattr(plane.routes, "wait_s", 0.2)
    refused = api.post("start_sample", {"name": "shelf", "index": 0})
    assert refused.status_code == 400
    assert "no slot became free" in refused.json()["message"]
    monkeypatch.setattr(plane.routes, "wait_s", 60.0)
    second: list[int] = []
    waiting = threading.Thread(target=lambda: second.append(Api(plane.api).start("shelf", 0)[0]))
    waiting.start()
    until(lambda: len(plane.controller.roster.waiting) == 1, what="the queue")
    api.cancel(number)
    waiting.join(60)
    api.cancel(second[0])
    until(lambda: plane.num_sessions("shelf") == 0, what="the free slot")


def test_whoever_hangs_up_while_waiting_leaves_the_queue(has, api):
    plane = has("shelf")
    number, _ = api.start("shelf", 0)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{plane.api}/start_sample", json={"name": "shelf", "index": 0}, timeout=httpx.Timeout(60, read=0.3))
    until(lambda: not len(plane.controller.roster.waiting), what="an empty queue")
    api.cancel(number)
    until(lambda: plane.num_sessions("shelf") == 0, what="the free slot")


def test_a_beat_with_11000_tasks_is_read_once(has, api, monkeypatch):
    plane = has("many-env_train")
    worker = plane.worker("many-env_train")
    assert len(api.get("get_indices", name="many-env_train").json()) == 11_001
    beat = {"name": worker.name, "address": worker.wire.address, "concurrency": 4, "indices": list(worker.indices)}
    monkeypatch.setattr(fleet, "decode", None)  # what is read again fails
    for _ in range(3):
        assert api.post("receive_heartbeat", beat).json() is None
    assert plane.worker("many-env_train") is worker


@pytest.mark.parametrize(
    ("beat", "why"),
    [
        ({"name": "x", "address": "ftp://a", "concurrency": 1, "indices": [0]}, "address"),
        ({"name": "x", "address": "http://127.0.0.1:1/api", "concurrency": 0, "indices": [0]}, "slots"),
        ({"name": "x", "address": "http://127.0.0.1:1/api", "concurrency": 1, "indices": []}, "tasks"),
        ({"name": "x", "address": "http://127.0.0.1:1/api", "concurrency": 1, "indices": [None]}, "indices"),
        ({"name": "x"}, "address"),
    ],
)
def test_a_beat_that_makes_no_sense_is_refused(api, beat, why):
    refused = api.post("receive_heartbeat", beat)
    assert refused.status_code == 400
    assert why in refused.json()["message"]


def test_a_worker_that_cannot_be_called_does_not_join(plane, api, monkeypatch):
    monkeypatch.setattr(fleet, "REACH_S", 0.1)
    refused = api.post(
        "receive_heartbeat", {"name": "x", "address": "http://127.0.0.1:1/api", "concurrency": 1, "indices": [0]}
    )
    assert refused.status_code == 400
    assert "-s" in refused.json()["message"]
    assert plane.worker("x") is None


# ---------------------------------------------------------------------------------------- operators


def test_a_stale_worker_gets_no_new_sessions(has, api, monkeypatch):
    plane = has("worded")
    worker_id = plane.worker("worded").id
    monkeypatch.setattr(plane.routes, "wait_s", 0.1)
    assert api.post("mark_stale", {"name": "worded", "worker_id": worker_id, "stale": True}).json() is None
    assert next(row for row in api.get("list_workers").json() if row["id"] == worker_id)["stale"]
    assert api.post("start_sample", {"name": "worded", "index": 0}).status_code == 400
    monkeypatch.setattr(plane.routes, "wait_s", 60.0)
    api.post("mark_stale", {"name": "worded", "worker_id": worker_id, "stale": False})
    number, _ = api.start("worded", 0)
    # those of the tests before this one are on their way out, if they are still there
    until(lambda: [row["session_id"] for row in api.get("list_sessions").json()] == [number], what="one session")
    api.post("clean_session", {"session_id": number})
    until(lambda: plane.num_sessions("worded") == 0)


def test_all_sessions_are_cancelled_only_if_it_is_clear_which(has, api):
    plane = has("worded")
    api.start("worded", 0)
    api.start("half", 0)
    assert api.post("cancel_all").status_code == 403
    assert api.post("cancel_all", name="half-std").json() is None
    until(lambda: {each.environment for each in plane.controller.roster.sessions.values()} == {"worded"})
    assert api.post("cancel_all").json() is None
    until(lambda: not plane.controller.roster.sessions)


def test_the_version_is_the_one_they_know(api):
    assert api.get("version").json() == {"variant": "nova", "version": 1}


# ---------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("number", ["", "x", "-1", "9" * 40, "12", "٣"])
def test_a_session_that_is_none_is_a_400(plane, number):
    headers = [(b"session_id", number.encode())]
    answer = httpx.post(
        f"{plane.api}/interact", headers=headers, json={"messages": [{"role": "assistant", "content": ""}]}
    )
    assert answer.status_code == 400
    assert answer.json()["message"]


@pytest.mark.parametrize("messages", [[], [{"role": "user", "content": "x"}], "x", None, [1], {}])
def test_messages_that_are_none_of_the_models_are_a_400(api, messages):
    number, _ = api.start("half", 0)
    answer = api._client.post("interact", headers={"session_id": str(number)}, json={"messages": messages})
    assert answer.status_code == 400
    assert api.say(number, "let me think").json()["reward"] == 0.5, "the session has not noticed"
    api.cancel(number)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "index", "messages", "session_id", "x"]), inner)
    ),
    max_leaves=6,
)
POSTS = [
    "start_sample",
    "interact",
    "cancel",
    "mark_stale",
    "clean_worker",
    "clean_session",
    "receive_heartbeat",
    "cancel_notice",
]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(POSTS), body=JSON | st.binary(max_size=20), header=st.sampled_from(["", "0", "77", "zz"]))
def test_no_body_makes_it_fail(api, path, body, header):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = api._client.post(path, content=data, headers={"session_id": header})
    assert answer.status_code in (200, 400, 403), answer.text


def test_a_token_travels_as_the_password_of_the_url(tmp_path):
    """As their evaluator (httpx) and their worker (aiohttp) send it."""
    tokens = tmp_path / "tokens"
    tokens.write_text("trainer secret-token\n")

    async def beat(url: str) -> int:
        async with aiohttp.ClientSession() as session, session.post(f"{url}/receive_heartbeat", json={}) as response:
            return response.status

    with Plane(tokens=str(tokens), ours=False) as plane:
        rest = plane.api.removeprefix("http://")
        for who, status in {
            "": 401,
            "any:wrong@": 401,
            "any:secret-token@": 400,
        }.items():  # 400: known, but asks nonsense
            with httpx.Client(base_url=f"http://{who}{rest}") as client:
                assert client.get("get_indices", params={"name": "x"}).status_code == status
            assert asyncio.run(beat(f"http://{who}{rest}")) == status
