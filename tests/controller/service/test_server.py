"""Sessions through the controller: placed, queued, played, renewed and withdrawn."""

import asyncio

import pytest

from ludus.controller.records import AskTasks, Close, Described, Renew, Renewed, SessionSpec, Solve, Withdraw
from ludus.errors import ControllerFailed, EnvironmentFailed, WorkerLost
from ludus.types import Action, Message, Observation, Task
from tests.controller.plane import FakeClient, FakeWorker, controller, plane, run, until, wish


def test_a_session_is_opened_on_a_worker_and_the_client_learns_where():
    async def test():
        async with plane() as (_, worker, client):
            opened = await client.open(3)
            [spec] = worker.opened
            assert (opened.worker_id, opened.address) == ("w1", "ws://w/link")
            assert spec == SessionSpec.of(wish(3), session_id=opened.session_id, key=opened.key, client="local")

    run(test())


def test_turns_through_the_controller_reach_the_worker_with_the_sessions_key():
    async def test():
        async with plane() as (served, worker, client):
            opened = await client.open()
            first = await client.start(opened.session_id)
            assert first.messages[0].content == "welcome to maze/train/0"
            answer = await client.act(opened.session_id, turn=0, content="left ünï ⟨x⟩")
            assert answer == Observation((Message("user", "you said left ünï ⟨x⟩"),), reward=1.0)
            solve = Solve(opened.session_id, "random_action", 5)
            assert await client.call("solve", solve, answer=Action) == Action("random_action 5")
            assert set(worker.keys) == {opened.key}
            await client.call("close", Close(opened.session_id))
            assert worker.closed == [opened.session_id]
            assert served.controller.roster.sessions == {}
            await client.call("close", Close(opened.session_id))  # twice is fine
            with pytest.raises(ControllerFailed, match="is over") as failure:
                await client.act(opened.session_id)
            assert failure.value.status == 410

    run(test())


def test_a_repeated_open_is_answered_with_the_session_it_opened():
    async def test():
        async with plane() as (_, worker, client):
            first, second = await asyncio.gather(client.open(0), client.open(0))
            assert first == second == await client.open(0)
            assert len(worker.opened) == 1
            with pytest.raises(ControllerFailed, match="use a new id") as failure:
                await client.open(1, request_id="request-0")
            assert failure.value.status == 409

    run(test())


def test_a_full_plane_queues_and_a_passed_deadline_is_told():
    async def test():
        async with plane(slots=1) as (_, worker, client):
            first = await client.open(0)
            queued, late = client.open(1), client.open(2, wait_s=0.1)
            with pytest.raises(ControllerFailed, match="no slot became free in time") as failure:
                await late
            assert failure.value.status == 503
            assert not queued.done()
            worker.end(first.session_id)
            assert (await queued).session_id in worker.sessions

    run(test())


def test_an_environment_that_fails_to_open_is_named_and_its_slot_is_free():
    async def test():
        async with plane(slots=1) as (served, worker, client):
            worker.refuses = EnvironmentFailed("maze/train/0: open raised KeyError: 'x'")
            with pytest.raises(EnvironmentFailed, match="KeyError"):
                await client.open(0)
            assert served.controller.roster.seats["w1"].free == 1
            assert await client.open(1)

    run(test())


def test_a_worker_that_turns_out_to_be_full_is_asked_again_later():
    async def test():
        async with plane() as (_, worker, client):
            worker.refuses = ControllerFailed("all slots are used", status=503)
            assert (await client.open(0)).session_id in worker.sessions

    run(test())


def test_an_unknown_session_is_404_and_a_foreign_one_403(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("ann token-a\nbob token-b\ncluster token-c\n")

    async def test():
        async with controller(tokens=str(tokens)) as served:
            worker = await FakeWorker(served.url, token="token-c").join()
            ann, bob = [await FakeClient.dial(served.url, token=token) for token in ("token-a", "token-b")]
            opened = await ann.open()
            for call in (bob.act(opened.session_id), bob.call("close", Close(opened.session_id))):
                with pytest.raises(ControllerFailed, match="not yours") as failure:
                    await call
                assert failure.value.status == 403
            with pytest.raises(ControllerFailed) as failure:
                await bob.act("000000000000")
            assert failure.value.status == 404
            renewed = await bob.call("renew", Renew((opened.session_id,)), answer=Renewed)
            assert renewed.ended == (opened.session_id,)
            assert worker.renewed == []
            assert await bob.open() != opened, "a request id is the client's own"

    run(test())


def test_an_environments_failure_keeps_its_name_through_the_relay():
    async def test():
        async with plane() as (_, worker, client):
            opened = await client.open()
            worker.fails = "act raised ZeroDivisionError"
            with pytest.raises(EnvironmentFailed, match="ZeroDivisionError"):
                await client.act(opened.session_id)

    run(test())


# ------------------------------------------------------------------------------ clients come and go


def test_a_client_that_vanishes_leaves_the_queue_but_not_its_sessions():
    async def test():
        async with plane(slots=1) as (served, worker, client):
            kept = await client.open(0)
            queued = client.open(1)
            await until(lambda: len(served.controller.roster.waiting) == 1)
            await client.connected.cut()
            await until(lambda: len(served.controller.roster.waiting) == 0)
            assert kept.session_id in worker.sessions
            with pytest.raises(WorkerLost):
                await queued
            again = await FakeClient.dial(served.url)
            assert await again.open(0) == kept
            await again.close()

    run(test())


def test_a_withdrawn_open_leaves_the_queue_or_is_closed():
    async def test():
        async with plane(slots=1) as (served, worker, client):
            opened = await client.open(0)
            queued = client.open(1)
            await until(lambda: len(served.controller.roster.waiting) == 1)
            await client.call("withdraw", Withdraw("request-1"))
            with pytest.raises(ControllerFailed, match="withdrawn"):
                await queued
            await client.call("withdraw", Withdraw("request-0"))
            await until(lambda: worker.closed == [opened.session_id])
            await client.call("withdraw", Withdraw("never-asked"))
            worker.may_open.clear()
            opening = client.open(2)
            await until(lambda: served.controller.roster.sessions)
            await client.call("withdraw", Withdraw("request-2"))
            worker.may_open.set()
            with pytest.raises(ControllerFailed, match="withdrawn"):
                await opening
            await until(lambda: served.controller.roster.seats["w1"].free == 1)
            assert worker.sessions == {}

    run(test())


def test_one_renewal_reaches_every_session_and_names_those_that_are_over():
    async def test():
        async with plane() as (_, worker, client):
            opened = await asyncio.gather(*(client.open(n) for n in range(3)))
            ids = tuple(each.session_id for each in opened)
            renewed = await client.call("renew", Renew((*ids, "gone")), answer=Renewed)
            assert renewed == Renewed(("gone",))
            await until(lambda: sorted(worker.renewed) == sorted(ids))

    run(test())


def test_a_session_whose_lease_ran_out_on_its_worker_is_told_to_the_client():
    async def test():
        async with plane() as (served, worker, client):
            opened = await client.open()
            worker.end(opened.session_id, cause="lease", message="nobody called for 60 s")
            await until(lambda: client.told)
            assert served.controller.roster.sessions == {}
            with pytest.raises(ControllerFailed, match="nobody called for 60 s"):
                await client.act(opened.session_id)

    run(test())


def test_tasks_are_asked_of_one_worker_once():
    async def test():
        async with plane() as (_, worker, client):
            for _ in range(3):
                tasks = await client.call("tasks", AskTasks("maze", "train"), answer=tuple[Task, ...])
                assert len(tasks) == 5
            assert len(worker.asked) == 1
            [described] = await client.call("environments", answer=tuple[Described, ...])
            assert described.name == "maze"
            with pytest.raises(ControllerFailed, match="Did you mean 'maze'"):
                await client.call("tasks", AskTasks("mase", "train"))

    run(test())
