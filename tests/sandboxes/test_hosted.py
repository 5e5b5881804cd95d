"""Sandboxed environments where they are used: in this process, in pens, in a run's own workers."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ludus.checks import check
from ludus.controller.client.local import LocalClient
from ludus.environments.registry import make, wrap
from ludus.sandboxes.provider import Sandboxes
from ludus.types import Action, ToolCall
from tests.sandboxes.conftest import make_state, need, new_marker, sleeping, wait_for
from tests.sandboxes.words import PennedWords, Words


def call(name: str, **arguments: str) -> Action:
    return Action(tool_calls=(ToolCall(name, arguments),))


@pytest.fixture
def state(tmp_path, monkeypatch, request) -> Path:
    need("namespace", request)
    folder = make_state(tmp_path)
    monkeypatch.setenv("LUDUS_STATE", str(folder))
    return folder


@pytest.mark.parametrize("author", [Words, PennedWords])
def test_a_session_is_played_in_its_sandbox_and_leaves_nothing(author, state):
    async def play() -> list[str]:
        client = LocalClient([wrap(author, name="words")])
        try:
            await client.prepare()
            tasks = await client.tasks("words", "train")
            session = await client.open(tasks[0], seed=0)
            await session.start()
            seen = await session.act(call("run", command="cat word.txt; id -u; cd /tmp"))
            moved = await session.act(call("run", command="pwd"))
            end = await session.act(call("answer", word="red"))
            assert end.done
            assert end.reward == 1
            labels = [json.loads(each.read_text())["session"] for each in (state / "labels").iterdir()]
            assert len(labels) == 1
            assert "words/train/0" in labels[0]
            await session.close()
            assert list((state / "labels").iterdir()) == []
            return [seen.messages[0].content, moved.messages[0].content]
        finally:
            await client.close()

    assert asyncio.run(play()) == ["red65534\n", "/tmp\n"]


def test_a_session_that_is_closed_while_a_command_runs_ends_the_command(state):
    marker = new_marker()

    async def play() -> None:
        client = LocalClient([wrap(Words, name="words")])
        try:
            session = await client.open((await client.tasks("words", "train"))[0], seed=0)
            await session.start()
            acting = asyncio.create_task(session.act(call("run", command=f"sleep {marker}")))
            assert await asyncio.to_thread(wait_for, lambda: len(sleeping(marker)) == 1)
            acting.cancel()
            await asyncio.gather(acting, return_exceptions=True)
            await session.close()
            assert await asyncio.to_thread(wait_for, lambda: not sleeping(marker))
        finally:
            await client.close()

    asyncio.run(play())


def test_env_check_plays_a_sandboxed_environment(state):
    sandboxes = Sandboxes(state=state)
    try:
        report = check(make("words", source="tests.sandboxes.words:Words"), num_tasks=2, sandboxes=sandboxes)
        assert report.ok, str(report)
        assert report.facts["sandbox"].startswith("namespace")
    finally:
        sandboxes.close()


def test_a_worker_that_is_killed_leaves_no_sandbox(state):
    """The worker's whole process, not only its provider: what a controller sees die."""
    marker = new_marker()
    script = f"""
import asyncio
from ludus.controller.client.local import LocalClient
from ludus.environments.registry import make
from tests.sandboxes.test_hosted import call

async def host():
    client = LocalClient([make("words", source="tests.sandboxes.words:PennedWords")])
    tasks = await client.tasks("words", "train")
    sessions = [await client.open(task, seed=0) for task in tasks]
    for session in sessions:
        await session.start()
        await session.act(call("run", command="sleep {marker} &"))
    print("ready", flush=True)
    await asyncio.sleep(1000)

asyncio.run(host())
"""
    worker = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    assert worker.stdout.readline().strip() == "ready"
    assert wait_for(lambda: len(sleeping(marker)) == 2), "both have been forked, and become sleeps in a moment"
    worker.kill()
    worker.communicate()
    assert wait_for(lambda: not sleeping(marker))
    after = Sandboxes(state=state)
    try:
        assert wait_for(lambda: leaves_no_label(after, state))
    finally:
        after.close()


def leaves_no_label(sandboxes: Sandboxes, state: Path) -> bool:
    """A pen's owner ends with the pen, a moment after its worker."""
    sandboxes.sweep()
    return list((state / "labels").iterdir()) == []
