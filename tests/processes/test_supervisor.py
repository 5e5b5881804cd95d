"""Processes that are started, watched, ended and explained; and ids that may have been reused."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ludus.errors import EngineLost, WorkerLost
from ludus.processes import supervisor as supervisor_module
from ludus.processes.supervisor import Process, Supervisor, how_ended
from ludus.wire.connection import Handler
from tests.hosting.isolated import alive, ends

LUDUS = (sys.executable, "-m", "ludus.cli.attached")
ECHO = (sys.executable, "-m", "tests.processes.echo")


def supervised(scene):
    """Runs `scene(supervisor)` and ends whatever it leaves."""

    async def main():
        supervisor = Supervisor()
        try:
            async with asyncio.timeout(120):
                return await scene(supervisor)
        finally:
            supervisor.close()

    return asyncio.run(main())


async def until(condition):
    while not condition():
        await asyncio.sleep(0.02)


def test_a_group_is_killed_once_for_its_number_may_be_somebody_elses_later(monkeypatch):
    supervisor, sleeper = Supervisor(), subprocess.Popen(["sleep", "600"], start_new_session=True)
    killed: list[int] = []
    try:
        supervisor.add(sleeper.pid)
        supervisor.kill(sleeper.pid)
        assert sleeper.wait(60) == -9
        monkeypatch.setattr(os, "killpg", lambda group, _: killed.append(group))
        supervisor.kill(sleeper.pid)
        supervisor.close()
    finally:
        sleeper.kill()
        sleeper.wait()
    assert killed == []


def test_a_command_that_does_not_exist_says_so(tmp_path):
    async def scene(supervisor):
        process = await Process(supervisor, "nobody", (*LUDUS, "nonsense"), log=tmp_path / "log").start()
        await process.wait()
        return process.explain()

    explained = supervised(scene)
    assert f"nobody ended with exit code 2. Last lines of {tmp_path / 'log'}:\n  " in explained
    assert "nonsense" in explained


def test_one_that_was_given_up_is_sent_nothing_when_the_run_stops_its_number_may_be_somebody_elses(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(supervisor_module, "MAX_RESTARTS", 1)
    signalled: list[int] = []

    async def scene(supervisor):
        process = await Process(supervisor, "nobody", (*LUDUS, "nonsense"), log=tmp_path / "log").start()
        process.keep_running()
        await until(lambda: process.given_up)
        assert "it ended 2 times within 600 s. nobody ended with exit code 2" in process.given_up
        monkeypatch.setattr(os, "kill", lambda pid, _: signalled.append(pid))
        monkeypatch.setattr(os, "killpg", lambda pid, _: signalled.append(pid))
        await process.stop()
        process.kill("again")

    supervised(scene)
    assert signalled == []


def test_a_restarted_process_is_explained_by_what_it_wrote_since(tmp_path):
    command = ("/bin/sh", "-c", "echo $$; exec sleep 600")

    async def scene(supervisor):
        process = await Process(supervisor, "sleeper", command, log=tmp_path / "log").start()
        process.keep_running()
        first = process.pid
        await until(process.output)
        os.kill(first, signal.SIGKILL)
        await until(lambda: process.pid != first and process.output())
        assert process.output().split() == [str(process.pid)]
        assert process.num_restarts == 1
        await process.stop()
        assert process.explain().startswith("sleeper was killed by SIGTERM. Last lines of")
        return first, process.pid

    assert not any(map(alive, supervised(scene)))


def test_one_that_ignores_sigterm_is_killed_with_what_it_started(tmp_path):
    command = ("/bin/sh", "-c", "trap '' TERM; sleep 600 & echo $!; wait; wait; sleep 600")

    async def scene(supervisor):
        process = await Process(supervisor, "stubborn", command, log=tmp_path / "log").start()
        await until(process.output)
        await process.stop(grace_s=0.2)
        return process, int(process.output())

    process, started = supervised(scene)
    assert process.explain().startswith("stubborn was killed: it did not end within 0.2 s")
    assert process.returncode == -signal.SIGKILL
    assert ends(started)


def test_both_ends_of_a_connected_process_call_each_other():
    async def scene(supervisor):
        heard = []
        handlers = {"twice": Handler(int, lambda number: 2 * number), "heard": Handler(str, heard.append)}
        process = await Process(supervisor, "echo", ECHO, handlers=handlers).start()
        assert await process.connection.call("ask_parent", 21, answer=int) == 42
        with pytest.raises(EngineLost, match="as ordered"):
            await process.connection.call("fail", "as ordered")
        assert process.alive
        await process.stop(grace_s=60)
        return process, heard

    process, heard = supervised(scene)
    assert (process.returncode, process.explain()) == (0, "echo ended with exit code 0")
    assert not process.alive
    assert heard == []


def test_what_a_process_sent_before_it_died_is_read_and_its_callers_learn_how_it_ended():
    async def scene(supervisor):
        heard = []
        process = await Process(supervisor, "echo", ECHO, handlers={"heard": Handler(str, heard.append)}).start()
        with pytest.raises(WorkerLost, match="echo is lost"):
            await process.connection.call("last_words", ["a", "b", "c"])
        await process.wait()
        return process.explain(), heard

    assert supervised(scene) == ("echo ended with exit code 3", ["a", "b", "c"])


def test_a_process_that_cannot_be_started_leaves_nothing_and_raises():
    async def scene(supervisor):
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(FileNotFoundError):
            await Process(supervisor, "nobody", ("/missing",), handlers={}).start()
        await asyncio.sleep(0)
        assert len(os.listdir("/proc/self/fd")) == before

    supervised(scene)


HOLDER = """
import asyncio
from ludus.processes.supervisor import Process, Supervisor

async def main():
    supervisor = Supervisor()
    command = ("/bin/sh", "-c", "sleep 600 & echo $!; wait")
    process = await Process(supervisor, "held", command, handlers={}).start()
    print(process.pid, flush=True)
    await process.wait()

asyncio.run(main())
"""


def test_nothing_is_left_when_the_parent_is_killed_whatever_the_command():
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    ) as holder:
        pids = {int(holder.stdout.readline()), int(holder.stdout.readline())}
        assert all(map(alive, pids))
        holder.kill()
    assert all(map(ends, pids))


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "ended with exit code 0"),
        (-signal.SIGTERM, "was killed by SIGTERM"),
        (-signal.SIGKILL, "was killed by SIGKILL (out of memory?)"),
        (-40, "was killed by signal 40"),
    ],
)
def test_how_a_process_ended_is_put_in_words(code, text):
    assert how_ended(code) == text
