"""AgentRL's own workers, HTTP and gRPC, serving our client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ludus.controller.agentrl import workers
from ludus.controller.client.remote import RemoteClient
from ludus.errors import ControllerFailed, EnvironmentFailed, LudusError, TurnTimeout, WorkerLost
from ludus.types import Action, Task, ToolCall
from tests.controller.agentrl.peers import Api, Plane, until

BOTH = pytest.mark.parametrize("name", ["double-std", "stream-std"], ids=["http", "grpc"])


def with_client(plane: Plane, play: Callable[[RemoteClient], Awaitable[Any]], **settings: Any) -> Any:
    async def run() -> Any:
        client = await RemoteClient.connect(plane.url, **settings)
        try:
            return await play(client)
        finally:
            await client.close()

    return asyncio.run(run())


async def task_of(client: RemoteClient, name: str, position: int = 0) -> Task:
    return (await client.tasks(name, client.environments()[name].splits[0]))[position]


def must_be_free(plane: Plane, name: str) -> None:
    """Their worker itself counts no session any more."""
    until(lambda: plane.num_sessions(name) == 0, what=f"the end of all sessions of {name}")


@BOTH
def test_a_session_on_their_worker_is_played_to_its_reward(has, name):
    async def play(client: RemoteClient) -> None:
        tasks = await client.tasks(name, "test")
        assert [task.id for task in tasks] == [f"{name}/test/{n}" for n in range(5)]
        session = await client.open(tasks[3], seed=0)
        start = await session.start()
        assert [(m.role, m.content) for m in start.messages] == [("system", "double the number"), ("user", "number 3")]
        wrong = await session.act(Action("5"))
        assert wrong.messages[0].content.startswith("wrong")
        assert not wrong.done
        right = await session.act(Action("6"))
        assert (right.messages[0].content, right.reward, right.done) == ("right", 1.0, True)
        assert right.metrics == {"score": 0.5}, "what is no number stays there"
        await session.close()

    with_client(has(name), play)


@BOTH
def test_a_win_after_a_malformed_turn_is_a_win(has, name):
    async def play(client: RemoteClient) -> None:
        session = await client.open(await task_of(client, name, 2), seed=0)
        await session.start()
        assert not (await session.act(Action("what?"))).done
        end = await session.act(Action("4"))
        assert (end.reward, end.done, end.invalid) == (1.0, True, False)
        await session.close()

    with_client(has(name), play)


@BOTH
def test_their_limit_of_turns_ends_a_session_and_pays_nothing_before(has, name):
    async def play(client: RemoteClient) -> None:
        session = await client.open(await task_of(client, name, 1), seed=0)
        await session.start()
        turns = [await session.act(Action("0")) for _ in range(4)]
        assert [turn.done for turn in turns] == [False, False, False, True]
        assert sum(turn.reward for turn in turns) == 0, "only the last answer's reward counts with them"
        assert turns[-1].metrics["ended_max_turns"] == 1
        await session.close()

    with_client(has(name), play)


@BOTH
def test_code_that_fails_there_is_an_environment_failed_here(has, name):
    async def play(client: RemoteClient) -> None:
        session = await client.open(await task_of(client, name, 1), seed=0)
        await session.start()
        with pytest.raises(EnvironmentFailed, match="task error"):
            await session.act(Action("fail"))
        await session.close()

    plane = has(name)
    with_client(plane, play)
    must_be_free(plane, name)


@BOTH
def test_more_sessions_than_slots_wait_their_turn(has, name):
    async def one(client: RemoteClient, task: Task) -> float:
        session = await client.open(task, seed=0)
        await session.start()
        end = await session.act(Action(str(2 * int(task.data["index"]))))
        await session.close()
        return end.reward

    async def play(client: RemoteClient) -> None:
        tasks = await client.tasks(name, "test")
        rewards = await asyncio.gather(*(one(client, task) for task in tasks * 4))
        assert rewards == [1.0] * 20

    plane = has(name)
    with_client(plane, play)
    must_be_free(plane, name)


@BOTH
def test_sessions_left_early_leave_no_slot_occupied(has, name):
    async def play(client: RemoteClient) -> None:
        for _ in range(5):  # more than it has slots
            session = await client.open(await task_of(client, name), seed=0)
            await session.start()
            await session.close()

    plane = has(name)
    with_client(plane, play)
    must_be_free(plane, name)
    assert plane.worker(name).slots == 3


def test_a_class_that_knows_nothing_of_cancelling_leaks_no_slot(has):
    async def play(client: RemoteClient) -> None:
        for _ in range(3):  # it has one slot
            session = await client.open(await task_of(client, "shelf"), seed=0)
            await session.start()
            await session.act(Action(tool_calls=(ToolCall("put", {"shelf": "9"}),)))
            await session.close()

    plane = has("shelf")
    with_client(plane, play, wait_s=60.0)
    must_be_free(plane, "shelf")
    assert not plane.worker("shelf").stuck


def test_a_class_that_handles_being_cancelled_is_cancelled(has):
    async def play(client: RemoteClient) -> None:
        for _ in range(3):
            session = await client.open(await task_of(client, "polite"), seed=0)
            await session.start()
            await session.close()

    plane = has("polite")
    with_client(plane, play)
    must_be_free(plane, "polite")
    assert plane.worker("polite")._cancels


def test_a_slot_that_nothing_can_free_is_taken_out_of_the_roster(has, monkeypatch):
    monkeypatch.setattr(workers, "NOTICE_S", 0.3)

    async def play(client: RemoteClient) -> None:
        session = await client.open(await task_of(client, "deaf"), seed=0)
        await session.start()
        await session.close()
        again = await client.open(await task_of(client, "deaf"), seed=0)
        assert (await again.start()).messages[0].content == "go on"
        client.wait_s = 0.5
        with pytest.raises(ControllerFailed, match="no slot"):
            await client.open(await task_of(client, "deaf"), seed=0)

    plane = has("deaf")
    with_client(plane, play)
    until(lambda: plane.worker("deaf").slots == 0, what="the second leak")
    assert plane.controller.roster.seats[plane.worker("deaf").id].leaving


def test_a_whole_history_that_is_sent_again_is_read_as_its_news(has):
    async def play(client: RemoteClient) -> None:
        session = await client.open(await task_of(client, "shelf", 2), seed=0)
        start = await session.start()
        assert [tool.name for tool in start.tools or ()] == ["put"]
        wrong = await session.act(Action(tool_calls=(ToolCall("put", {"shelf": "1"}),)))
        assert [(m.role, m.content) for m in wrong.messages] == [("tool", "it is on 1 now")]
        right = await session.act(Action(tool_calls=(ToolCall("put", {"shelf": "2"}),)))
        assert [(m.role, m.content) for m in right.messages] == [("tool", "it is on 2 now")]
        assert right.reward == 1
        assert right.done
        await session.close()

    with_client(has("shelf"), play)


def test_a_turn_that_takes_too_long_is_a_timeout_and_frees_its_slot_later(has):
    async def play(client: RemoteClient) -> None:
        session = await client.open(await task_of(client, "sleeper"), seed=0, timeout_s=1.0)
        await session.start()
        with pytest.raises(TurnTimeout):
            await session.act(Action("a while"))
        await session.close()
        again = await client.open(await task_of(client, "sleeper"), seed=0)
        await again.start()
        await again.close()

    plane = has("sleeper")
    with_client(plane, play)
    must_be_free(plane, "sleeper")


def test_a_session_whose_client_is_gone_is_freed_by_its_lease(has):
    async def play(client: RemoteClient) -> None:
        session = await client.open(await task_of(client, "worded"), seed=0)
        await session.start()
        client.live.clear()  # nobody renews it, nobody closes it

    plane = has("worded")
    with_client(plane, play, lease_s=1.5)
    must_be_free(plane, "worded")


def test_a_session_that_their_worker_has_lost_ends_as_failed(has):
    async def play(client: RemoteClient) -> None:
        session = await client.open(await task_of(client, "worded"), seed=0)
        await session.start()
        worker = plane.worker("worded")
        plane.call(worker.wire.call, "cancel_with_notice", {"session_id": next(iter(worker.sessions.values())).number})
        until(lambda: plane.num_sessions("worded") == 0)
        plane.call(plane.routes.fleet.reconcile)
        with pytest.raises(LudusError, match="no longer"):
            await session.act(Action("0"))

    plane = has("worded")
    with_client(plane, play)


def test_after_a_500_of_their_worker_the_next_calls_do_not_notice(has):
    """It closes the connection of a 500 without saying so; a session that gets one ends, and no
    other is handed that connection."""
    plane = has("worded")
    api = Api(plane.api)
    for _ in range(20):
        number, _ = api.start("worded", "n0")
        assert "500" in api.say(number).json()["result"]
    must_be_free(plane, "worded")


def test_a_session_there_that_nobody_plays_is_ended(has):
    plane = has("worded")
    assert plane.call(plane.worker("worded").wire.call, "start_sample", {"index": "n0", "session_id": 7}).status == 200
    plane.call(plane.routes.fleet.reconcile)
    must_be_free(plane, "worded")
    until(lambda: plane.worker("worded").slots == 2, what="its slot")


def test_a_worker_that_is_killed_is_lost_and_its_sessions_end_as_failed(has):
    async def play(client: RemoteClient) -> None:
        task = await task_of(client, "victim")
        other, session = await client.open(task, seed=0), await client.open(task, seed=0)
        await other.start()
        await session.start()
        with pytest.raises(WorkerLost):
            await session.act(Action("die"))
        with pytest.raises(LudusError, match="lost"):
            await other.act(Action("0"))

    plane = has("victim")
    with_client(plane, play)
    assert plane.worker("victim") is None
    assert plane.controller.roster.hosts("victim") == []
