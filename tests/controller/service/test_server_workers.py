"""Workers that join, fall silent, break off, come back or are somebody else's, and a controller
that is restarted under them.
"""

import asyncio

import httpx
import pytest

from ludus.controller.records import Described, Ended, Register
from ludus.controller.service import serving
from ludus.controller.service.server import TICK_S
from ludus.errors import ConfigError, ControllerFailed, WorkerLost
from ludus.types import Observation
from tests.controller.plane import FakeClient, FakeWorker, controller, dial, pass_time, plane, run, until


def test_a_worker_lost_while_act_runs_ends_the_session_and_everybody_hears_why():
    async def test():
        async with plane() as (_, worker, client):
            opened = await client.open()
            worker.may_act.clear()
            acting = asyncio.ensure_future(client.act(opened.session_id))
            await until(lambda: worker.acts)
            await worker.cut()
            with pytest.raises(WorkerLost, match="worker w1 was lost: its connection broke and it did not come back"):
                await acting
            await until(lambda: client.told)
            assert [(each.session_id, each.cause) for each in client.told] == [(opened.session_id, "failed")]
            with pytest.raises(WorkerLost, match="w1 was lost"):
                await client.start(opened.session_id)

    run(test())


def test_a_worker_that_returns_within_the_grace_is_asked_again_and_nothing_is_lost():
    async def test():
        async with plane(grace_s=60.0) as (_, worker, client):
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


def test_a_session_that_two_lost_workers_had_in_one_tick_is_opened_on_the_third():
    async def test():
        async with plane() as (served, worker, client):
            second, third = [await FakeWorker(served.url, name).join() for name in ("w2", "w3")]
            worker.may_open.clear()
            opening = client.open()
            seat, heartbeat_s = served.controller.roster.seats["w3"], served.controller.settings.heartbeat_s
            await until(lambda: served.controller.roster.seats["w1"].sessions)
            before = seat.heard
            pass_time(served, seconds=2 * heartbeat_s)
            third.beat()
            await until(lambda: seat.heard >= before + 2 * heartbeat_s)
            pass_time(served, seconds=2 * heartbeat_s)
            opened = await opening
            assert (opened.worker_id, len(second.opened), len(third.opened)) == ("w3", 0, 1)
            assert await client.start(opened.session_id)
            await second.close()
            await third.close()

    run(test())


def test_a_silent_worker_is_lost_though_its_connection_stands_and_may_join_again():
    async def test():
        async with plane() as (served, worker, client):
            opened = await client.open()
            worker.may_act.clear()
            acting = asyncio.ensure_future(client.act(opened.session_id))
            await until(lambda: worker.acts)
            pass_time(served, seconds=3 * served.controller.settings.heartbeat_s)
            with pytest.raises(WorkerLost, match="3 heartbeats"):
                await acting
            await asyncio.wait_for(worker.connected.running, 60)
            await worker.join()
            assert worker.registered.unknown == (opened.session_id,)
            assert served.controller.roster.seats["w1"].free == 4

    run(test())


def test_a_worker_that_beats_lives():
    async def test():
        async with plane() as (served, worker, _):
            seat, heartbeat_s = served.controller.roster.seats["w1"], served.controller.settings.heartbeat_s
            for _ in range(8):
                before = seat.heard
                pass_time(served, seconds=2 * heartbeat_s)
                worker.beat()
                await until(lambda before=before: seat.heard >= before + 2 * heartbeat_s)
            await asyncio.sleep(2 * TICK_S)  # the controller has looked
            assert served.controller.roster.seats["w1"] is seat

    run(test())


def test_a_second_link_of_a_worker_replaces_the_first_and_the_firsts_end_changes_nothing():
    async def test():
        async with plane() as (served, worker, client):
            opened = await client.open()
            old = worker.connected
            await worker.join()
            await old.cut()
            await asyncio.sleep(0.05)  # the controller has noticed
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
            await until(lambda: len(served.controller.roster.waiting) == 1)
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
            connected = await dial(served.url, "/link/worker")
            with pytest.raises(ConfigError, match=message):
                await connected.connection.call("register", register)
            with pytest.raises(ControllerFailed, match="register"):
                await connected.connection.call("ended", Ended("x"))
            await connected.close()

    run(test())


class ThirdPartyWorker:
    """A worker that is no link of ours: it joins as an object, and does not keep leases."""

    dialect, keeps_leases = "third-party", False

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


def test_the_controller_keeps_the_leases_of_third_party_workers():
    async def test():
        async with controller() as served:
            worker = ThirdPartyWorker("f1")
            served.controller.join(worker, Register("f1", (Described("maze"),), 2), owner="third-party")
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


# ------------------------------------------------------------------------------------------ restart


def test_after_a_restart_sessions_whose_worker_returns_go_on_and_the_others_fail(tmp_path):
    async def test():
        async with controller(state=str(tmp_path)) as served:
            stays = await FakeWorker(served.url, "stays", slots=1).join()
            dies = await FakeWorker(served.url, "dies", slots=1).join()
            client = await FakeClient.dial(served.url)
            one, other = await client.open(0), await client.open(1)
            served.controller.drain("stays", draining=True)
        await asyncio.gather(client.connected.running, stays.connected.running, dies.connected.running)
        kept, lost = (one, other) if one.worker_id == "stays" else (other, one)
        async with controller(state=str(tmp_path)) as served:
            stays.url = served.url
            await stays.join()
            client = await FakeClient.dial(served.url)
            assert stays.registered.unknown == ()
            assert stays.drains == [True, True], "drained workers stay drained"
            assert await client.start(kept.session_id)
            waiting = asyncio.ensure_future(client.start(lost.session_id))
            seat, heartbeat_s = served.controller.roster.seats["stays"], served.controller.settings.heartbeat_s
            for _ in range(2):  # one of the two beats, as it should
                before = seat.heard
                pass_time(served, seconds=2 * heartbeat_s)
                stays.beat()
                await until(lambda before=before: seat.heard >= before + 2 * heartbeat_s)
            with pytest.raises(WorkerLost, match="dies was lost"):
                await waiting
            assert await client.open(0 if kept is one else 1) == kept, "a repeated request finds its session"
            await client.close()
            await stays.close()

    run(test())


def test_a_controller_that_stops_does_not_take_those_it_hangs_up_on_for_lost(tmp_path, monkeypatch):
    """Its end waits for calls in progress, and that may take longer than the grace."""
    monkeypatch.setattr(serving, "STOP_S", 1)

    async def test():
        async with httpx.AsyncClient(timeout=60) as http:
            async with controller(state=str(tmp_path), grace_s=0.0) as served:
                worker = await FakeWorker(served.url).join()
                worker.may_act.clear()
                opened = await (await FakeClient.dial(served.url)).open()
                act, turn = f"{served.url}/sessions/{opened.session_id}/act", {"turn": 0, "action": {"content": "left"}}
                acting = asyncio.ensure_future(http.post(act, json=turn))
                await until(lambda: worker.acts)
            await asyncio.gather(acting, return_exceptions=True)
        async with controller(state=str(tmp_path)) as served:
            assert list(served.controller.roster.sessions) == [opened.session_id]

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
