"""A worker's sessions: once, one at a time, within limits, and nothing stays occupied."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time

import pytest

from ludus.controller.client.local import LocalClient
from ludus.controller.records import Act, Close, Open, Renew, SessionSpec, Solve, Start
from ludus.controller.worker.sessions import Sessions
from ludus.environments import wrap
from ludus.environments.fake import FakeEnvironment
from ludus.errors import ControllerFailed, EnvironmentFailed, TurnTimeout
from ludus.types import Action, Task
from tests.controller.plane import until

KEY = "key-of-session"


def make_text_environment():
    """A fresh class per test, so that its counters are its own."""

    class Text:
        """Says it back."""

        tasks = {"train": [{"n": n} for n in range(9)], "test": [{"n": 10}]}
        actions_seen: list = []
        num_opened = num_closed = 0
        gate = threading.Event()
        count = 0

        def setup(self, task, rng):
            type(self).num_opened += 1
            return "go"

        def act(self, text):
            self.actions_seen.append(text)
            if text == "wait":
                assert self.gate.wait(60)
            while text == "loop":
                type(self).count += 1
            if text == "leave":
                raise SystemExit("as ordered")
            return f"{text} {len(self.actions_seen)}"

        def solve(self):
            return "wait"

        def random_action(self, rng):
            return str(rng.random())

        def close(self):
            type(self).num_closed += 1

    Text.actions_seen = []
    return Text


class Scene:
    def __init__(self, author, *, slots=4):
        self.ended = []
        self.client = LocalClient([wrap(author, name="text")])
        self.sessions = Sessions(self.client, slots=slots, on_ended=self.ended.append)

    async def open(self, session_id="s1", *, number=0, **limits):
        task = Task(f"text/train/{number}", "text", "train", {"n": number})
        wanted = Open(task=task, seed=0, request_id=f"r-{session_id}", **limits)
        await self.sessions.open(SessionSpec.of(wanted, session_id=session_id, key=KEY, client="me"))
        return session_id

    async def started(self, session_id="s1", **limits):
        await self.open(session_id, **limits)
        await self.call(Start(session_id, KEY))
        return session_id

    async def call(self, body, **options):
        return await asyncio.shield(self.sessions.call(body, **options))

    def act(self, text="hello", *, turn=0, request="a", session_id="s1", key=KEY):
        return self.call(Act(session_id, turn, Action(text), request, key))


def play(scene_of, *, author=None, **settings):
    async def main():
        scene = Scene(author or make_text_environment(), **settings)
        try:
            return await scene_of(scene)
        finally:
            await scene.sessions.end_all("the test is over")
            await scene.client.close()

    return asyncio.run(main())


def said(observation):
    return observation.messages[-1].content


def status_of(raised):
    return raised.value.status


def test_a_repeated_call_is_answered_again_and_carried_out_once():
    text = make_text_environment()

    async def scene_of(scene):
        await scene.open()
        await scene.open()
        first = await scene.call(Start("s1", KEY))
        assert await scene.call(Start("s1", KEY)) == first
        answers = [said(await scene.act()) for _ in range(3)]
        assert [said(await scene.act(turn=1, request="b")) for _ in range(2)] == ["hello 2"] * 2
        return answers

    assert play(scene_of, author=text) == ["hello 1"] * 3
    assert (text.num_opened, text.actions_seen) == (1, ["hello", "hello"])


def test_a_failure_is_remembered_like_any_answer():
    text = make_text_environment()

    async def scene_of(scene):
        await scene.started()
        for _ in range(2):
            with pytest.raises(EnvironmentFailed, match="act raised SystemExit: as ordered"):
                await scene.act("leave")

    play(scene_of, author=text)
    assert text.actions_seen == ["leave"]


@pytest.mark.parametrize(
    ("turn", "request_id", "message"),
    [
        (0, "other", "got turn 0, expected turn 2; turn 1 was taken by another request"),
        (1, "other", "got turn 1, expected turn 2"),
        (3, "new", "got turn 3, expected turn 2"),
    ],
)
def test_another_request_for_a_taken_turn_and_a_turn_too_far_are_conflicts(turn, request_id, message):
    async def scene_of(scene):
        await scene.started()
        await scene.act()
        await scene.act(turn=1, request="b")
        with pytest.raises(ControllerFailed, match=message) as raised:
            await scene.act(turn=turn, request=request_id)
        assert status_of(raised) == 409

    play(scene_of)


def test_an_act_before_the_start_is_a_conflict():
    async def scene_of(scene):
        await scene.open()
        with pytest.raises(ControllerFailed, match="call start first") as raised:
            await scene.act()
        assert status_of(raised) == 409

    play(scene_of)


def test_two_acts_at_once_are_a_conflict_and_the_first_goes_on():
    text = make_text_environment()

    async def scene_of(scene):
        await scene.started()
        first = asyncio.ensure_future(scene.act("wait"))
        await asyncio.sleep(0.05)
        for turn, request in ((0, "other"), (1, "other")):
            with pytest.raises(ControllerFailed) as raised:
                await scene.act("me too", turn=turn, request=request)
            assert status_of(raised) == 409
        text.gate.set()
        return said(await first)

    assert play(scene_of, author=text) == "wait 1"
    assert text.actions_seen == ["wait"]


def test_an_act_survives_its_caller_and_the_repeated_call_joins_it():
    text = make_text_environment()

    async def scene_of(scene):
        await scene.started()
        first = asyncio.ensure_future(scene.act("wait"))
        await asyncio.sleep(0.05)
        first.cancel()
        again = asyncio.ensure_future(scene.act("wait"))
        await asyncio.sleep(0.05)
        text.gate.set()
        return said(await again)

    assert play(scene_of, author=text) == "wait 1"
    assert text.actions_seen == ["wait"]


def test_a_wrong_key_is_forbidden_except_that_the_controller_needs_none():
    async def scene_of(scene):
        await scene.started()
        for key in ("", "wrong", "schlüssel"):
            with pytest.raises(ControllerFailed, match="key does not fit") as raised:
                await scene.act(key=key)
            assert status_of(raised) == 403
        with pytest.raises(ControllerFailed, match="key does not fit"):
            await scene.call(Act("s1", 0, Action("x"), "a", "wrong"), trusted=True)
        return said(await scene.call(Act("s1", 0, Action("x"), "a"), trusted=True))

    assert play(scene_of) == "x 1"


def test_an_unknown_session_is_not_found_and_closing_it_is_fine():
    async def scene_of(scene):
        with pytest.raises(ControllerFailed, match="no session 's9'") as raised:
            await scene.act(session_id="s9")
        assert status_of(raised) == 404
        await scene.sessions.close(Close("s9", "x"))

    play(scene_of)


def test_sessions_beyond_the_slots_are_refused_and_a_closed_one_makes_room():
    text = make_text_environment()

    async def scene_of(scene):
        await scene.open("s1")
        await scene.open("s2")
        with pytest.raises(ControllerFailed, match="all 2 slots") as raised:
            await scene.open("s3")
        assert status_of(raised) == 503
        await asyncio.gather(*(scene.sessions.close(Close("s1", KEY)) for _ in range(3)))
        await scene.open("s3")
        assert [(each.session_id, each.cause) for each in scene.ended] == [("s1", "closed")]
        assert {each.session_id for each in scene.sessions.running()} == {"s2", "s3"}

    play(scene_of, author=text, slots=2)
    assert text.num_closed == 3, "each once"


def test_a_draining_worker_takes_no_new_sessions_and_the_old_ones_go_on():
    async def scene_of(scene):
        await scene.started()
        scene.sessions.draining = True
        with pytest.raises(ControllerFailed, match="draining") as raised:
            await scene.open("s2")
        assert status_of(raised) == 503
        assert not scene.sessions.empty.is_set()
        await scene.act()
        await scene.sessions.close(Close("s1", KEY))
        await scene.sessions.empty.wait()

    play(scene_of)


def test_a_lease_that_runs_out_frees_the_slot_and_says_why():
    text = make_text_environment()

    async def scene_of(scene):
        await scene.started(lease_s=1.0)
        async with asyncio.timeout(60):
            await scene.sessions.empty.wait()
        (ended,) = scene.ended
        assert (ended.session_id, ended.cause) == ("s1", "lease")
        with pytest.raises(ControllerFailed, match=r"no call or renewal for 1 s") as raised:
            await scene.act()
        assert status_of(raised) == 404

    play(scene_of, author=text)
    assert text.num_closed == 1


def test_calls_and_renewals_keep_a_lease():
    async def scene_of(scene):
        await scene.started("called", lease_s=2.0)
        await scene.started("renewed", lease_s=2.0)
        await scene.started("forgotten", lease_s=2.0)
        turns = itertools.count()
        while not scene.ended:
            turn = next(turns)
            await scene.act(session_id="called", turn=turn, request=str(turn))
            renewed = scene.sessions.renew(Renew(("renewed", "no such")))
            assert renewed.ended == ("no such",)
            await asyncio.sleep(0.1)
        return [each.session_id for each in scene.ended], {each.session_id for each in scene.sessions.running()}

    assert play(scene_of) == (["forgotten"], {"called", "renewed"})


class SlowToOpen(FakeEnvironment):
    def open(self, task, *, seed):
        time.sleep(0.8)
        return super().open(task, seed=seed)


def test_a_lease_begins_when_the_session_is_open_for_nobody_can_renew_it_before():
    async def scene():
        ended = []
        client = LocalClient([SlowToOpen()])
        sessions = Sessions(client, slots=1, on_ended=ended.append)
        task = Task("fake/train/0", "fake", "train", {"words": ["red"]})
        wanted = Open(task=task, seed=0, request_id="r", lease_s=0.5)
        await sessions.open(SessionSpec.of(wanted, session_id="s1", key=KEY, client="me"))
        assert (len(sessions), ended) == (1, [])
        async with asyncio.timeout(60):
            await sessions.empty.wait()
        await client.close()
        return [each.cause for each in ended]

    assert asyncio.run(scene()) == ["lease"]


def test_a_lease_that_runs_out_during_an_act_ends_it():
    async def scene_of(scene):
        await scene.started(lease_s=1.0)
        with pytest.raises(ControllerFailed, match="no call or renewal"):
            await scene.act("loop")
        await scene.sessions.empty.wait()

    play(scene_of)


def test_a_turn_out_of_time_is_really_stopped_and_the_session_waits_to_be_closed():
    text = make_text_environment()

    async def scene_of(scene):
        await scene.started(timeout_s=1.0)
        for _ in range(2):
            with pytest.raises(TurnTimeout, match=r"text/train/0: act exceeded 1 s and was stopped"):
                await scene.act("loop")
        with pytest.raises(TurnTimeout):
            await scene.act(turn=1, request="b")
        before = text.count
        await asyncio.sleep(0.05)
        assert text.count == before, "the loop goes on"
        assert not scene.ended
        await scene.sessions.close(Close("s1", KEY))
        assert [each.cause for each in scene.ended] == ["closed"]

    play(scene_of, author=text)
    assert text.num_closed == 1


def test_a_broken_session_that_its_client_does_not_close_is_closed(monkeypatch):
    monkeypatch.setattr("ludus.controller.worker.sessions.BROKEN_S", 0.05)

    async def scene_of(scene):
        await scene.started(timeout_s=1.0)
        with pytest.raises(TurnTimeout):
            await scene.act("loop")
        async with asyncio.timeout(60):
            await scene.sessions.empty.wait()
        (ended,) = scene.ended
        assert ended.cause == "timeout"
        assert "act exceeded" in ended.message
        with pytest.raises(TurnTimeout):
            await scene.act(turn=1, request="b")

    play(scene_of)


def test_a_session_out_of_time_is_stopped_in_the_middle_of_its_act(monkeypatch):
    monkeypatch.setattr("ludus.controller.worker.sessions.BROKEN_S", 0.05)
    text = make_text_environment()

    async def scene_of(scene):
        await scene.started(session_timeout_s=1.0)
        await scene.started("other")
        with pytest.raises(TurnTimeout, match=r"the session exceeded 1 s in act"):
            await scene.act("loop")
        await until(lambda: scene.sessions._live.keys() == {"other"})
        before = text.count
        await asyncio.sleep(0.05)
        assert text.count == before
        return said(await scene.act(session_id="other"))

    assert play(scene_of, author=text) == "hello 2"


def test_an_open_that_fails_leaves_no_session_behind():
    async def scene_of(scene):
        scene.client._environments["text"] = FakeEnvironment(name="text", fault="exit", fault_in="open")
        with pytest.raises(EnvironmentFailed, match="open raised SystemExit"):
            await scene.open()
        assert (len(scene.sessions), scene.ended) == (0, [])

    play(scene_of)


def test_an_open_out_of_time_leaves_no_session_behind():
    let_go = threading.Event()

    class Slow(FakeEnvironment):
        def open(self, task, *, seed):
            let_go.wait(60)
            return super().open(task, seed=seed)

    async def scene_of(scene):
        scene.client._environments["text"] = Slow(name="text")
        with pytest.raises(TurnTimeout, match="opening exceeded"):
            await scene.open(timeout_s=0.05)
        let_go.set()
        assert len(scene.sessions) == 0

    play(scene_of)


def test_a_session_closed_while_it_opens_is_over_when_it_has_opened():
    opened = threading.Event()

    class Slow(FakeEnvironment):
        def open(self, task, *, seed):
            assert opened.wait(60)
            return super().open(task, seed=seed)

    async def scene_of(scene):
        scene.client._environments["text"] = Slow(name="text")
        opening = asyncio.ensure_future(scene.open())
        await asyncio.sleep(0.05)
        closing = asyncio.ensure_future(scene.sessions.close(Close("s1", KEY)))
        await asyncio.sleep(0.05)
        opened.set()
        await closing
        with pytest.raises(ControllerFailed, match="is over: closed"):
            await opening
        assert len(scene.sessions) == 0

    play(scene_of)


def test_a_player_proposes_by_its_seed_and_a_repeated_question_is_asked_once():
    text = make_text_environment()

    async def scene_of(scene):
        await scene.started()
        ask = Solve("s1", "random_action", seed=3, key=KEY)
        return [(await scene.call(ask)).content for _ in range(2)]

    assert play(scene_of, author=text) == [str(random.Random(3).random())] * 2
