"""Who beats, who is gone, and what a restart finds; with workers of a few lines instead of
AgentRL's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ludus.controller.agentrl import fleet as fleets
from ludus.controller.agentrl.fleet import Fleet
from ludus.controller.agentrl.wires import Answer
from ludus.controller.records import Act, Close, Open, Opened, Start, new_key, number_of
from ludus.controller.service.server import Controller, Settings
from ludus.errors import ConfigError, ControllerFailed, LudusError, WorkerLost
from ludus.types import Action, Task

CLIENT = "local"


class FakeWorker:
    """What an AgentRL worker does, by address: it echoes, and ends when it is told nonsense."""

    all: dict[str, FakeWorker] = {}

    def __init__(self, address: str, *, slots: int = 2) -> None:
        self.address, self.slots = address, slots
        self.sessions: dict[int, Any] = {}
        self.dead = False
        self.slow = asyncio.Event()
        """Answers to turns are under way until it is set."""
        self.slow.set()
        self.started: list[int] = []
        FakeWorker.all[address] = self

    def beat(self, *, name: str = "echo", indices: tuple[Any, ...] = (0, 1)) -> bytes:
        body = {"name": name, "address": self.address, "concurrency": self.slots, "indices": indices}
        return json.dumps(body).encode()

    def answer(self, name: str, body: Any) -> Answer:
        number = body and body["session_id"]
        if name == "get_sessions":
            return Answer(200, {str(each): index for each, index in self.sessions.items()})
        if name == "start_sample":
            if len(self.sessions) >= self.slots:
                return Answer(406, {"detail": "full"})
            self.sessions[number] = body["index"]
            self.started.append(number)
            return Answer(200, said("hello"))
        if number not in self.sessions:
            return Answer(400, {"detail": "No such session"})
        content = body["messages"][0]["content"]
        ends = content in ([0], "bye")
        if ends:
            del self.sessions[number]
        return Answer(200, {"env_out": said(content) | ({"finish": True, "status": "completed"} if ends else {})})


def said(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "status": "running", "finish": False, "reward": 0}


class FakeWire:
    def __init__(self, address: str) -> None:
        self.worker = FakeWorker.all[address]

    async def call(self, name: str, body: Any = None) -> Answer:
        await asyncio.sleep(0)
        if self.worker.dead:
            raise WorkerLost("nobody there")
        answer = self.worker.answer(name, body)
        if name == "interact":
            await self.worker.slow.wait()
        return answer

    async def close(self) -> None:
        return None


@pytest.fixture(autouse=True)
def _fake_wires(monkeypatch):
    monkeypatch.setattr(fleets, "HttpWire", FakeWire)
    monkeypatch.setattr(fleets, "REACH_S", 0.05)


def run(play: Callable[[Controller, Fleet], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        controller = Controller(Settings(**settings))
        await controller.begin()
        fleet = Fleet(controller, reconcile_s=0.02)
        try:
            await play(controller, fleet)
        finally:
            await fleet.close()
            await controller.end()

    asyncio.run(main())


async def opened(controller: Controller, *, wait_s: float = 60.0) -> Opened:
    task = Task("echo/train/0", "echo", "train", {"index": 0})
    request = Open(task, seed=0, request_id=new_key(), wait_s=wait_s)
    return await controller.open(request, client=CLIENT)


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.005)


def test_a_repeated_turn_is_answered_and_another_one_refused():
    worker = FakeWorker("http://a:1/api")

    async def play(controller: Controller, fleet: Fleet) -> None:
        await fleet.beat(worker.beat(), owner=CLIENT)
        session_id = (await opened(controller)).session_id
        act = Act(session_id, 0, Action("one"), request_id="q")
        with pytest.raises(ControllerFailed, match="not been started"):
            await controller.turn(act, client=CLIENT)
        first = await controller.turn(Start(session_id), client=CLIENT)
        assert await controller.turn(Start(session_id), client=CLIENT) == first
        answers = await asyncio.gather(*(controller.turn(act, client=CLIENT) for _ in range(3)))
        assert [answer.messages[0].content for answer in answers] == ["one"] * 3
        for turn, request_id in [(0, "other"), (5, "q")]:
            with pytest.raises(ControllerFailed, match="at turn 1") as refused:
                await controller.turn(Act(session_id, turn, Action("x"), request_id=request_id), client=CLIENT)
            assert refused.value.status == 409
        assert worker.started == [number_of(session_id)]

    run(play)


def test_a_session_that_ends_with_an_answer_still_under_way_is_not_lost():
    """Asked meanwhile which sessions it has, their worker does not name it any more."""
    worker = FakeWorker("http://a:1/api")

    async def play(controller: Controller, fleet: Fleet) -> None:
        await fleet.beat(worker.beat(), owner=CLIENT)
        session_id = (await opened(controller)).session_id
        await controller.turn(Start(session_id), client=CLIENT)
        worker.slow.clear()
        last = asyncio.create_task(controller.turn(Act(session_id, 0, Action("bye"), request_id="q"), client=CLIENT))
        await until(lambda: not worker.sessions)
        await fleet.reconcile()
        assert session_id in controller.roster.sessions
        worker.slow.set()
        assert (await last).done
        await fleet.reconcile()
        assert session_id in controller.roster.sessions, "its client closes it"

    run(play)


def test_what_a_restarted_controller_finds_is_ended_on_both_sides(tmp_path):
    worker = FakeWorker("http://a:1/api")
    numbers: list[int] = []

    async def before(controller: Controller, fleet: Fleet) -> None:
        await fleet.beat(worker.beat(), owner=CLIENT)
        numbers.append(number_of((await opened(controller)).session_id))

    async def after(controller: Controller, fleet: Fleet) -> None:
        assert len(controller.roster.sessions) == 1, "the journal remembers it"
        session_id = next(iter(controller.roster.sessions))
        await fleet.beat(worker.beat(), owner=CLIENT)
        await until(lambda: not worker.sessions)
        with pytest.raises(WorkerLost, match="came back without it"):
            await controller.turn(Start(session_id), client=CLIENT)
        await until(lambda: fleet.workers["agentrl-a-1"].slots == 2)
        numbers.append(number_of((await opened(controller)).session_id))

    run(before, state=str(tmp_path))
    assert worker.sessions
    run(after, state=str(tmp_path))
    assert len(set(numbers)) == 2, "no id is given twice"


def test_a_worker_that_nobody_can_reach_is_lost_and_its_beat_brings_it_back():
    worker = FakeWorker("http://a:1/api")

    async def play(controller: Controller, fleet: Fleet) -> None:
        await fleet.beat(worker.beat(), owner=CLIENT)
        session_id = (await opened(controller)).session_id
        worker.dead = True
        await until(lambda: not fleet.workers)
        with pytest.raises(WorkerLost, match="nobody there"):
            await controller.turn(Start(session_id), client=CLIENT)
        with pytest.raises(ConfigError, match="cannot be called"):
            await fleet.beat(worker.beat(), owner=CLIENT)
        worker.dead, worker.sessions = False, {}
        await fleet.beat(worker.beat(), owner=CLIENT)
        assert (await opened(controller)).worker_id == "agentrl-a-1"

    run(play)


def test_a_worker_that_is_full_after_all_passes_the_session_on():
    full, free = FakeWorker("http://a:1/api"), FakeWorker("http://b:1/api")

    async def play(controller: Controller, fleet: Fleet) -> None:
        await fleet.beat(full.beat(), owner=CLIENT)
        full.slots = 0  # whatever it said in its beat
        waiting = asyncio.create_task(opened(controller))
        await asyncio.sleep(0.02)
        await fleet.beat(free.beat(), owner=CLIENT)
        assert (await waiting).worker_id == "agentrl-b-1"

    run(play)


def test_workers_of_a_name_must_have_the_same_tasks():
    one, other = FakeWorker("http://a:1/api"), FakeWorker("http://b:1/api")

    async def play(controller: Controller, fleet: Fleet) -> None:
        await fleet.beat(one.beat(), owner=CLIENT)
        with pytest.raises(ConfigError, match="must agree"):
            await fleet.beat(other.beat(indices=(0, 1, 2)), owner=CLIENT)
        assert list(fleet.workers) == ["agentrl-a-1"]

    run(play)


def test_a_worker_that_beats_with_other_tasks_was_started_anew():
    worker = FakeWorker("http://a:1/api")

    async def play(controller: Controller, fleet: Fleet) -> None:
        await fleet.beat(worker.beat(), owner=CLIENT)
        session_id = (await opened(controller)).session_id
        await fleet.beat(worker.beat(indices=("a", "b")), owner=CLIENT)
        with pytest.raises(LudusError, match="restarted"):
            await controller.turn(Start(session_id), client=CLIENT)
        await until(lambda: not worker.sessions)
        assert fleet.workers["agentrl-a-1"].indices == ("a", "b")

    run(play)


def test_closing_frees_the_slot_there_and_here():
    worker = FakeWorker("http://a:1/api", slots=1)

    async def play(controller: Controller, fleet: Fleet) -> None:
        await fleet.beat(worker.beat(), owner=CLIENT)
        for _ in range(3):
            session_id = (await opened(controller)).session_id
            assert list(worker.sessions) == [number_of(session_id)]
            await controller.close(Close(session_id), client=CLIENT)
            assert not worker.sessions
            assert not controller.roster.sessions

    run(play)
