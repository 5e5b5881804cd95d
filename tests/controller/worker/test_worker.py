"""A worker in this process, at real sockets."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from ludus.controller.records import AskTasks, Close, Drain, Renew, Renewed, Solve, Start
from ludus.controller.worker import worker as workers
from ludus.controller.worker.worker import Worker
from ludus.environments import wrap
from ludus.environments.fake import FakeEnvironment, FakeSession
from ludus.errors import ControllerFailed, EnvironmentFailed, WorkerLost
from ludus.hosting.process_pool import PoolLimits
from ludus.types import Action, Observation, Task
from tests.controller.fake_controller import FakeController, act, connected, start
from tests.controller.plane import until
from tests.hosting.isolated import Isolated, ends


@asynccontextmanager
async def running(environments, *, controller=None, slots=4, **settings):
    """(controller, worker, address) of a worker in this process, registered."""
    controller = controller or FakeController()
    async with controller.listening():
        worker = Worker(environments, controller=controller.url, slots=slots, **settings)
        run = asyncio.create_task(worker.run())
        try:
            async with asyncio.timeout(60):
                register = await controller.registered.get()
            yield controller, worker, register
        finally:
            worker.stop()
            worker.stop()
            await run


def test_a_worker_says_what_it_offers_and_plays_a_session_on_its_own_link():
    async def scene():
        environments = [FakeEnvironment(turns=2), FakeEnvironment(name="other", blocking=False)]
        async with running(environments, token="secret") as (controller, worker, register):
            assert [each.name for each in register.environments] == ["fake", "other"]
            assert register.environments[0].options["turns"] == 2
            assert (register.slots, register.running, register.worker_id) == (4, (), worker.id)
            assert controller.headers[0]["authorization"] == "Bearer secret"
            tasks = await controller.worker.call("tasks", AskTasks("fake", "test"), answer=tuple[Task, ...])
            assert len(tasks) == 20
            await controller.open(environment="fake")
            async with connected(register.address) as client:
                seen = [await start(client)]
                for turn in range(2):
                    ask = Solve("s1", "solve", turn, "key-s1")
                    action = await client.call("solve", ask, answer=Action)
                    seen.append(await act(client, action.content, turn=turn, request=str(turn)))
                await client.call("close", Close("s1", "key-s1"))
            ended = await controller.ended.get()
            return seen, ended, len(worker.sessions)

    seen, ended, left = asyncio.run(scene())
    assert sum(each.reward for each in seen) == pytest.approx(1)
    assert seen[-1].done
    assert (ended.session_id, ended.cause, left) == ("s1", "closed", 0)


def test_refusals_travel_with_their_status():
    async def scene():
        async with running([FakeEnvironment()], slots=1) as (controller, _, register):
            await controller.open(environment="fake")
            with pytest.raises(ControllerFailed) as full:
                await controller.open("s2", environment="fake")
            async with connected(register.address) as client:
                with pytest.raises(ControllerFailed) as stranger:
                    await act(client, key="key-s2")
                with pytest.raises(ControllerFailed) as unknown:
                    await act(client, session_id="s9")
                with pytest.raises(ControllerFailed) as placing:
                    await client.call("open")
            return [raised.value.status for raised in (full, stranger, unknown, placing)]

    assert asyncio.run(scene()) == [503, 403, 404, 404]


def test_only_link_is_there_for_a_browser_to_find():
    async def scene():
        async with running([FakeEnvironment()]) as (_, _, register):
            with pytest.raises(InvalidStatus) as raised:
                await connect(register.address.replace("/link", "/"))
            return raised.value.response.status_code

    assert asyncio.run(scene()) == 404


class Held(FakeEnvironment):
    """Its turns are held until they are let go."""

    def __init__(self):
        super().__init__()
        self.acting, self.let_go = threading.Event(), threading.Event()

    def open(self, task, *, seed):
        return HeldSession(self, task, seed=seed)


class HeldSession(FakeSession):
    def act(self, action):
        self.environment.acting.set()
        assert self.environment.let_go.wait(60)
        return super().act(action)


def test_an_act_outlives_the_link_it_came_over_and_is_joined_over_the_next():
    held = Held()

    async def scene():
        async with running([held]) as (controller, _, register):
            await controller.open(environment="fake")
            async with connected(register.address) as first:
                await start(first)
                lost = asyncio.ensure_future(act(first))
                assert await asyncio.to_thread(held.acting.wait, 60)
                await first.close()
                with pytest.raises(WorkerLost):
                    await lost
            async with connected(register.address) as second:
                joining = asyncio.ensure_future(act(second))
                await asyncio.sleep(0.05)
                held.let_go.set()
                one = await joining
                two = await act(second)
                three = await act(second, "blue", turn=1, request="b")
            return one, two, three

    one, two, three = asyncio.run(scene())
    assert one == two
    assert three.done


def test_the_controllers_link_serves_turns_too_and_needs_no_key():
    async def scene():
        async with running([FakeEnvironment()]) as (controller, _, _):
            await controller.open(environment="fake")
            await controller.worker.call("start", Start("s1"), answer=Observation)
            renewed = await controller.worker.call("renew", Renew(("s1", "s2")), answer=Renewed)
            return renewed, await act(controller.worker, key="")

    renewed, seen = asyncio.run(scene())
    assert renewed.ended == ("s2",)
    assert seen.reward > 0


def test_a_restarted_controller_learns_what_runs_and_sessions_go_on(monkeypatch):
    monkeypatch.setattr(workers, "LONGEST_PAUSE_S", 0.1)

    async def scene():
        async with running([FakeEnvironment()]) as (controller, worker, register):
            await controller.open("s1", environment="fake")
            await controller.open("s2", environment="fake")
            async with connected(register.address) as client:
                await start(client)
                controller.unknown = ("s2",)
                await controller.worker.close()
                async with asyncio.timeout(60):
                    again = await controller.registered.get()
                    while len(worker.sessions) > 1:
                        await asyncio.sleep(0.01)
                return again, await act(client)

    again, seen = asyncio.run(scene())
    assert {(each.session_id, each.key, each.request_id, each.client) for each in again.running} == {
        ("s1", "key-s1", "r-s1", "me"),
        ("s2", "key-s2", "r-s2", "me"),
    }
    assert again.running[0].task.id == "fake/train/0"
    assert seen.reward > 0


def test_a_worker_dials_until_there_is_a_controller(monkeypatch):
    monkeypatch.setattr(workers, "LONGEST_PAUSE_S", 0.1)

    async def scene():
        controller = FakeController()
        worker = Worker([FakeEnvironment()], controller=controller.url, slots=1)
        run = asyncio.create_task(worker.run())
        await asyncio.sleep(0.3)
        async with controller.listening(), asyncio.timeout(60):
            await controller.registered.get()
            worker.stop()
            return await run

    assert asyncio.run(scene()) == 0


def test_a_controller_that_falls_silent_is_dialled_again(monkeypatch):
    """Its heartbeats are not answered: the endpoint waits for ever."""
    monkeypatch.setattr(workers, "LONGEST_PAUSE_S", 0.1)

    async def scene():
        controller = FakeController(heartbeat_s=0.05)
        controller.beats = type("Deaf", (list,), {"append": lambda self, beat: asyncio.sleep(60)})()
        async with running([FakeEnvironment()], controller=controller) as (_, worker, _), asyncio.timeout(60):
            return worker.id, (await controller.registered.get()).worker_id

    worker_id, registered_again = asyncio.run(scene())
    assert registered_again == worker_id


def test_heartbeats_say_how_many_sessions_there_are():
    async def scene():
        async with running([FakeEnvironment()], controller=FakeController(heartbeat_s=0.5)) as (controller, worker, _):
            await controller.open(environment="fake")
            async with asyncio.timeout(60):
                while not any(beat.num_sessions == 1 for beat in controller.beats):
                    await asyncio.sleep(0.01)
            return controller.beats[-1].worker_id == worker.id

    assert asyncio.run(scene())


def test_a_megabyte_travels():
    async def scene():
        async with running([FakeEnvironment(fault="megabyte")]) as (controller, _, register):
            await controller.open(environment="fake")
            async with connected(register.address) as client:
                await start(client)
                return await act(client)

    assert len(asyncio.run(scene()).messages[0].content) == 1_000_000


def test_an_environment_that_raises_what_ends_processes_ends_only_its_session():
    async def scene():
        environments = [FakeEnvironment(fault="exit", blocking=False), FakeEnvironment(name="well")]
        async with running(environments) as (controller, _, register):
            await controller.open("s1", environment="fake")
            await controller.open("s2", environment="well")
            async with connected(register.address) as client:
                await start(client, "s1")
                with pytest.raises(EnvironmentFailed, match="act raised SystemExit"):
                    await act(client)
                await start(client, "s2")
                return await act(client, session_id="s2")

    assert asyncio.run(scene()).reward > 0


def test_a_drained_worker_refuses_and_an_undrained_one_takes_sessions_again():
    async def scene():
        async with running([FakeEnvironment()]) as (controller, worker, _):
            await controller.worker.call("drain", Drain(True))
            with pytest.raises(ControllerFailed, match="draining"):
                await controller.open("s1", environment="fake")
            await controller.worker.call("drain", Drain(False))
            await controller.open("s2", environment="fake")
            return [each.session_id for each in worker.sessions.running()]

    assert asyncio.run(scene()) == ["s2"]


def test_a_stopped_worker_lets_its_sessions_finish():
    async def scene():
        async with running([FakeEnvironment(turns=1)]) as (controller, worker, register):
            await controller.open(environment="fake")
            async with connected(register.address) as client:
                await start(client)
                worker.stop()
                with pytest.raises(ControllerFailed, match="draining"):
                    await controller.open("s2", environment="fake")
                seen = await act(client)
                await client.call("close", Close("s1", "key-s1"))
            async with asyncio.timeout(60):
                while not controller.beats[-1].draining:
                    await asyncio.sleep(0.01)
                ended = await controller.ended.get()
            return seen, ended

    seen, ended = asyncio.run(scene())
    assert seen.reward > 0
    assert ended.cause == "closed"


def test_the_time_for_draining_is_limited():
    async def scene():
        controller = FakeController()
        async with controller.listening():
            worker = Worker([FakeEnvironment()], controller=controller.url, slots=1, drain_s=0.1)
            run = asyncio.create_task(worker.run())
            await controller.registered.get()
            await controller.open(environment="fake")
            worker.stop()
            async with asyncio.timeout(60):
                return await run, await controller.ended.get()

    status, ended = asyncio.run(scene())
    assert (status, ended.cause, ended.message) == (0, "failed", "its worker was stopped")


def test_sessions_with_their_own_process_are_played_and_killed_like_the_others():
    async def scene():
        environments = [wrap(Isolated, name="isolated"), FakeEnvironment()]
        async with running(environments, pool_limits=PoolLimits(num_warm=1)) as (controller, worker, register):
            await controller.open("s1", environment="isolated", timeout_s=2.0)
            await controller.open("s2", environment="fake")
            async with connected(register.address) as client:
                pid = int((await start(client)).messages[-1].content)
                with pytest.raises(EnvironmentFailed, match=r"act exceeded 2 s and was stopped"):
                    await act(client, "loop")
                assert ends(pid)
                await client.call("close", Close("s1", "key-s1"))
                await start(client, "s2")
                seen = await act(client, session_id="s2")
            return seen, len(worker.sessions)

    seen, left = asyncio.run(scene())
    assert seen.reward > 0
    assert left == 1


class SlowToRegister(FakeController):
    """Answers a registration only when it is told to."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def _register(self, register):
        answer = super()._register(register)
        await self.may_answer.wait()
        return answer


def test_a_session_that_ends_while_the_worker_registers_is_told_afterwards():
    """The controller was told that it runs, and would count its slot as taken for ever."""

    async def scene():
        async with running([FakeEnvironment()], controller=SlowToRegister()) as (controller, _, register):
            await controller.open(environment="fake")
            controller.may_answer.clear()
            await controller.worker.close()
            again = await controller.registered.get()
            async with connected(register.address) as client:
                await client.call("close", Close("s1", "key-s1"))
            controller.may_answer.set()
            async with asyncio.timeout(60):
                return again, await controller.ended.get()

    again, ended = asyncio.run(scene())
    assert [each.session_id for each in again.running] == ["s1"]
    assert (ended.session_id, ended.cause) == ("s1", "closed")


class Unopened(FakeEnvironment):
    """Fails to open, late."""

    def __init__(self):
        super().__init__(name="unopened")
        self.may_fail = threading.Event()

    def open(self, task, *, seed):
        self.may_fail.wait(60)
        raise RuntimeError("not today")


def test_a_session_that_could_not_be_opened_is_told_to_a_controller_that_did_not_ask_for_it():
    """One that was restarted meanwhile: it took the worker's word that the session runs."""

    async def scene():
        unopened = Unopened()
        async with running([unopened]) as (controller, worker, _):
            opening = asyncio.ensure_future(controller.open(environment="unopened"))
            await until(lambda: len(worker.sessions) == 1)
            await controller.worker.close()
            with pytest.raises(WorkerLost):
                await opening
            again = await controller.registered.get()
            unopened.may_fail.set()
            async with asyncio.timeout(60):
                return again, await controller.ended.get()

    again, ended = asyncio.run(scene())
    assert [each.session_id for each in again.running] == ["s1"]
    assert (ended.session_id, ended.cause) == ("s1", "failed")
    assert "not today" in ended.message


def test_a_session_that_could_not_be_opened_is_not_told_besides_to_whoever_waits_for_the_answer():
    async def scene():
        unopened = Unopened()
        unopened.may_fail.set()
        async with running([unopened]) as (controller, _, _):
            with pytest.raises(EnvironmentFailed, match="not today"):
                await controller.open(environment="unopened")
            return controller.ended.empty()

    assert asyncio.run(scene())
