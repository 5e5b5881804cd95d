import asyncio
import contextlib
import time

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from ludus.controller.protocol import (
    MAX_FRAME_BYTES,
    AskTasks,
    Close,
    Described,
    Ended,
    Open,
    Opened,
    Register,
    Renew,
    Renewed,
    Solve,
    Withdraw,
)
from ludus.controller.server import Settings
from ludus.errors import ConfigError, ControllerFailed, EnvironmentFailed, WorkerLost
from ludus.types import Action, Message, Observation, Task
from tests.controller.plane import FakeClient, FakeWorker, controller, dial, plane, run, until, wish


def test_a_session_is_opened_on_a_worker_and_the_client_learns_where():
    async def test():
        async with plane() as (_, worker, client):
            opened = await client.open(3)
            [here] = worker.opened
            assert (opened.worker_id, opened.address) == ("w1", "ws://w/link")
            assert (here.session_id, here.key, here.client) == (opened.session_id, opened.key, "local")
            assert here.open == wish(3)

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


# ------------------------------------------------------------------------------------------------ workers come and go


def test_a_worker_lost_while_act_runs_ends_the_session_and_everybody_hears_why():
    async def test():
        async with plane() as (_, worker, client):
            opened = await client.open()
            worker.may_act.clear()
            acting = asyncio.ensure_future(client.act(opened.session_id))
            await until(lambda: worker.acts)
            await worker.cut()
            with pytest.raises(WorkerLost, match="worker w1 was lost: its link broke and it did not come back"):
                await acting
            await until(lambda: client.told)
            assert [(each.session_id, each.cause) for each in client.told] == [(opened.session_id, "failed")]
            with pytest.raises(WorkerLost, match="w1 was lost"):
                await client.start(opened.session_id)

    run(test())


def test_a_worker_that_returns_within_the_grace_is_asked_again_and_nothing_is_lost():
    async def test():
        async with plane(grace_s=5.0) as (_, worker, client):
            opened = await client.open()
            worker.may_act.clear()
            acting = asyncio.ensure_future(client.act(opened.session_id))
            await until(lambda: worker.acts)
            await worker.cut()
            worker.may_act.set()
            await worker.join()
            assert (await acting).messages[0].content == "you said left"
            first, second = worker.acts
            assert first == second, "by turn and request id the worker knows the repeated call"
            assert worker.registered.unknown == ()

    run(test())


def test_a_session_that_was_being_opened_on_a_lost_worker_is_opened_elsewhere():
    async def test():
        async with plane() as (served, worker, client):
            worker.may_open.clear()
            opening = client.open()
            await until(lambda: served.controller.roster.sessions)
            other = await FakeWorker(served.url, "w2").join()
            await worker.cut()
            opened = await opening
            assert opened.worker_id == "w2"
            assert opened.session_id in other.sessions
            await other.close()

    run(test())


def test_a_silent_worker_is_lost_though_its_connection_stands_and_may_join_again():
    async def test():
        async with plane(heartbeat_s=0.2) as (served, worker, client):
            opened = await client.open()
            worker.may_act.clear()
            with pytest.raises(WorkerLost, match="3 heartbeats"):
                await client.act(opened.session_id)
            await asyncio.wait_for(worker.linked.running, 20)
            await worker.join()
            assert worker.registered.unknown == (opened.session_id,)
            assert served.controller.roster.seats["w1"].free == 4

    run(test())


def test_a_worker_that_beats_lives():
    async def test():
        async with plane(heartbeat_s=0.5) as (served, worker, _):
            for _ in range(8):
                worker.beat()
                await asyncio.sleep(0.25)
            assert "w1" in served.controller.roster.seats

    run(test())


def test_a_second_link_of_a_worker_replaces_the_first_and_the_firsts_end_changes_nothing():
    async def test():
        async with plane() as (served, worker, client):
            opened = await client.open()
            old = worker.linked
            await worker.join()
            await old.cut()
            await asyncio.sleep(0.05)
            assert served.controller.roster.seats["w1"].away_until is None
            assert await client.start(opened.session_id)

    run(test())


def test_a_drained_worker_gets_nothing_new_and_hears_of_it_also_after_joining_again():
    async def test():
        async with plane() as (served, worker, client):
            opened = await client.open(0)
            served.controller.drain("w1", draining=True)
            queued = client.open(1)
            assert await client.start(opened.session_id)
            await worker.join()
            await until(lambda: worker.drains == [True, True])
            assert not queued.done()
            served.controller.drain("w1", draining=False)
            assert (await queued).worker_id == "w1"

    run(test())


def test_a_worker_that_drains_itself_says_so_in_its_heartbeat():
    async def test():
        async with plane() as (served, worker, client):
            worker.beat(draining=True)
            await until(lambda: served.controller.roster.seats["w1"].leaving)
            queued = client.open()
            await asyncio.sleep(0.02)
            assert not queued.done()
            worker.beat(draining=False)
            await queued

    run(test())


def test_workers_of_one_environment_must_agree_about_it():
    async def test():
        async with plane() as (served, worker, _):
            other = FakeWorker(served.url, "w2", options={"size": 9})
            with pytest.raises(ConfigError, match="must agree"):
                await other.join()
            await worker.close()
            await until(lambda: not served.controller.roster.seats)
            await other.join()
            await other.close()

    run(test())


@pytest.mark.parametrize(
    ("register", "message"),
    [
        (Register("w9", (Described("maze"),), 0), "at least one slot"),
        (Register("w9", (), 1, version=99), "speaks protocol 99"),
    ],
)
def test_a_worker_that_cannot_be_used_is_refused_with_the_reason(register, message):
    async def test():
        async with controller() as served:
            linked = await dial(served.url, "/link/worker")
            with pytest.raises(ConfigError, match=message):
                await linked.link.call("register", register)
            with pytest.raises(ControllerFailed, match="register"):
                await linked.link.call("ended", Ended("x"))
            await linked.close()

    run(test())


# ------------------------------------------------------------------------------------------------ clients come and go


def test_a_client_that_vanishes_leaves_the_queue_but_not_its_sessions():
    async def test():
        async with plane(slots=1) as (served, worker, client):
            kept = await client.open(0)
            queued = client.open(1)
            await until(lambda: len(served.controller.roster.waiting) == 1)
            await client.linked.cut()
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


class ForeignWorker:
    """A worker that is no link of ours: it joins as an object, and does not keep leases."""

    dialect, keeps_leases = "foreign", False

    def __init__(self, worker_id):
        self.id = worker_id
        self.open_now, self.left = set(), False

    async def open(self, here):
        self.open_now.add(here.session_id)

    async def start(self, start):
        await asyncio.sleep(0.4)
        return Observation()

    async def close(self, close):
        self.open_now.discard(close.session_id)

    def renew(self, session_ids): ...

    def drain(self, draining): ...

    def leave(self):
        self.left = True


def test_the_controller_keeps_the_leases_of_foreign_workers():
    async def test():
        async with controller() as served:
            worker = ForeignWorker("f1")
            served.controller.join(worker, Register("f1", (Described("maze"),), 2), owner="foreign")
            client = await FakeClient.dial(served.url)
            opened = await client.open(lease_s=0.2)
            await client.start(opened.session_id)  # longer than the lease, which does not run out meanwhile
            assert worker.open_now == {opened.session_id}
            await until(lambda: not worker.open_now)
            await until(lambda: client.told)
            assert client.told[0].cause == "lease"
            assert served.controller.roster.seats["f1"].free == 2
            served.controller.lost("f1", reason="no heartbeat")
            assert worker.left
            await client.close()

    run(test())


# ------------------------------------------------------------------------------------------------ restart


def test_after_a_restart_sessions_whose_worker_returns_go_on_and_the_others_fail(tmp_path):
    settings = {"state": str(tmp_path), "heartbeat_s": 0.7, "grace_s": 0.3}

    async def test():
        async with controller(**settings) as served:
            stays = await FakeWorker(served.url, "stays", slots=1).join()
            dies = await FakeWorker(served.url, "dies", slots=1).join()
            client = await FakeClient.dial(served.url)
            one, other = await client.open(0), await client.open(1)
            served.controller.drain("stays", draining=True)
        await asyncio.gather(client.linked.running, stays.linked.running, dies.linked.running)
        kept, lost = (one, other) if one.worker_id == "stays" else (other, one)
        async with controller(**settings) as served:
            stays.url = served.url
            await stays.join()
            beating = asyncio.create_task(stays.beat_for_ever())
            client = await FakeClient.dial(served.url)
            assert stays.registered.unknown == ()
            assert stays.drains == [True, True], "drained workers stay drained"
            assert await client.start(kept.session_id)
            with pytest.raises(WorkerLost, match="dies was lost"):
                await client.start(lost.session_id)
            assert await client.open(0 if kept is one else 1) == kept, "a repeated request finds its session"
            beating.cancel()
            await client.close()
            await stays.close()

    run(test())


def test_a_controller_that_lost_its_state_learns_everything_from_the_workers():
    async def test():
        async with plane() as (_, worker, client):
            opened = await client.open(0)
        async with controller() as served:
            again = await FakeClient.dial(served.url)
            repeated = again.open(0)
            await until(lambda: len(served.controller.roster.waiting) == 1)
            worker.url = served.url
            await worker.join()
            assert await repeated == opened
            assert len(worker.opened) == 1
            await again.close()
            await worker.close()

    run(test())


# ------------------------------------------------------------------------------------------------ tokens and limits


@pytest.mark.parametrize("path", ["/link", "/link/worker"])
@pytest.mark.parametrize("token", ["", "wrong", "expired-token"])
def test_without_a_good_token_there_is_no_link(tmp_path, path, token):
    tokens = tmp_path / "tokens"
    tokens.write_text("ann good-token\nold expired-token 2020-01-01\n")

    async def test():
        async with controller(tokens=str(tokens)) as served:
            with pytest.raises(InvalidStatus) as refusal:
                await dial(served.url, path, token=token)
            assert refusal.value.response.status_code == 401
            await (await dial(served.url, path, token="good-token")).close()

    run(test())


def test_a_revoked_tokens_link_is_closed(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("ann stolen\nbob fine\n")

    async def test():
        async with controller(tokens=str(tokens)) as served:
            ann, bob = await dial(served.url, "/link", token="stolen"), await dial(served.url, "/link", token="fine")
            tokens.write_text("bob fine\n")
            reason = await asyncio.wait_for(ann.running, 20)
            assert "revoked" in reason
            assert await bob.link.call("environments") is None
            await bob.close()

    run(test())


def test_beyond_loopback_tokens_are_required(monkeypatch):
    monkeypatch.delenv("LUDUS_TOKEN", raising=False)

    async def test():
        async with controller(host="0.0.0.0"):
            pass

    with pytest.raises(ConfigError, match="without tokens"):
        run(test())


def test_a_client_that_calls_too_fast_over_its_link_hears_429():
    async def test():
        async with controller(max_rate=20) as served:
            linked = await dial(served.url, "/link")
            calls = [linked.link.call("environments") for _ in range(60)]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            refused = [answer for answer in answers if isinstance(answer, ControllerFailed)]
            assert 30 <= len(refused) <= 40
            assert {each.status for each in refused} == {429}
            await linked.close()

    run(test())


def test_a_frame_that_is_no_frame_ends_the_link_and_nobody_elses():
    async def test():
        async with plane() as (served, _, client):
            bad = await dial(served.url, "/link")
            await bad.connection.send(b'{"not": "a frame"')
            await asyncio.wait_for(bad.running, 20)
            with pytest.raises(ConnectionClosed):
                await bad.connection.recv()
            assert await client.open()

    run(test())


def test_a_frame_too_large_ends_its_link_and_nobody_elses():
    async def test():
        async with plane() as (served, _, client):
            bad = await dial(served.url, "/link")
            with contextlib.suppress(ConnectionClosed):
                await bad.connection.send(b"x" * (MAX_FRAME_BYTES + 1))
            assert "too big" in await asyncio.wait_for(bad.running, 20)
            assert await client.open()

    run(test())


def test_a_wall_clock_that_jumps_changes_nothing(monkeypatch):
    async def test():
        async with plane() as (served, _, client):
            opened = await client.open()
            for jump in (86400, -86400):
                now = time.time() + jump
                monkeypatch.setattr(time, "time", lambda now=now: now)
                await asyncio.sleep(0.3)
                assert await client.start(opened.session_id)
            assert "w1" in served.controller.roster.seats

    run(test())


@pytest.mark.parametrize("name", ["nope", "register"])
def test_a_call_that_clients_may_not_make_is_404(name):
    async def test():
        async with plane() as (_, _, client):
            with pytest.raises(ControllerFailed, match="no such call") as failure:
                await client.call(name, {})
            assert failure.value.status == 404

    run(test())


def test_an_open_with_a_bad_field_is_refused_by_name():
    async def test():
        async with plane() as (_, _, client):
            with pytest.raises(ConfigError, match="lease_s"):
                await client.call("open", Open(wish().task, 0, "r", lease_s=-1.0), answer=Opened)

    run(test())


def test_two_thousand_sessions_open_at_once_and_close():
    async def test():
        async with plane(slots=1000, max_rate=0) as (served, worker, client):

            async def visit(number):
                opened = await client.open(number)
                await client.call("close", Close(opened.session_id))
                return opened.session_id

            ids = await asyncio.gather(*(visit(n) for n in range(2000)))
            assert sorted(worker.closed) == sorted(ids)
            assert len(set(ids)) == len(worker.opened) == 2000
            await until(lambda: not served.controller.roster.sessions)
            assert served.controller.roster.seats["w1"].free == 1000

    run(test())


def test_the_default_settings_are_the_ones_the_command_shows():
    from ludus.cli.serve import controller as command

    shown = {name: option.default for name, option in zip(command.__annotations__, command.__defaults__, strict=False)}
    settings = Settings()
    assert shown["heartbeat_s"] == settings.heartbeat_s
    assert shown["grace_s"] == settings.grace_s
    assert shown["max_rate"] == settings.max_rate
    assert shown["max_request_mb"] * 2**20 == settings.max_request_bytes
