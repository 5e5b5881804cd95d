"""Sessions in processes of their own: real processes, real kills."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ludus.controller.client.local import LocalClient
from ludus.environments import wrap
from ludus.errors import ConfigError, EnvironmentFailed, TurnTimeout
from ludus.hosting.process_pool import PoolLimits
from ludus.types import Action
from tests.controller.plane import until
from tests.hosting.isolated import AsyncIsolated, Isolated, Unmade, alive, ends

FEW = PoolLimits(num_warm=0)


def scene(play, *, author=Isolated, limits=FEW, **options):
    """Runs `play(client)` with a client of that environment, called isolated, and closes it."""

    async def main():
        client = LocalClient([wrap(author, name="isolated", options=options)], pool_limits=limits)
        try:
            return await play(client)
        finally:
            await client.close()

    return asyncio.run(main())


async def opened(client, *, index=0, **limits):
    tasks = await client.tasks("isolated", "train")
    session = await client.open(tasks[index], seed=0, **limits)
    return session, int((await session.start()).messages[-1].content)


async def acted(session, action, *, times):
    for _ in range(times):
        await session.act(action)


def text(observation):
    return observation.messages[-1].content


@pytest.mark.parametrize("author", [Isolated, AsyncIsolated])
def test_a_session_is_played_to_its_end_in_another_process(author):
    async def play(client):
        session, pid = await opened(client)
        seen = await session.act(await session.solve(rng=random.Random(0)))
        await session.close()
        return pid, seen

    pid, seen = scene(play, author=author)
    assert pid != os.getpid()
    assert (text(seen), seen.reward, seen.done, seen.metrics) == (str(pid), 0.5, True, {"turns": 1.0})
    assert ends(pid), "closing the client ends its processes"


def test_a_players_seed_gives_the_same_action_here_and_in_another_process():
    class Here(Isolated):
        isolation = "none"

    async def propose(client):
        session, _ = await opened(client)
        return await session.solve(mistakes=1.0, rng=random.Random(5))

    assert scene(propose) == scene(propose, author=Here)


def test_sessions_share_a_process_one_after_the_other_and_never_at_once():
    async def play(client):
        first, pid_of_first = await opened(client)
        second, pid_of_second = await opened(client)
        assert pid_of_first != pid_of_second
        await first.close()
        _, pid_of_third = await opened(client)
        await second.close()
        return pid_of_first, pid_of_third

    first, third = scene(play)
    assert first == third


def test_a_session_process_is_replaced_after_its_number_of_sessions():
    async def play(client):
        pids = []
        for _ in range(5):
            session, pid = await opened(client)
            await session.close()
            pids.append(pid)
        return pids

    tasks_and_sessions = PoolLimits(num_warm=0, max_sessions=4)  # `opened` also asks for the tasks: two uses
    pids = scene(play, limits=tasks_and_sessions)
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]
    assert all(ends(pid) for pid in pids)


def test_a_session_process_that_has_grown_is_replaced_after_its_session():
    async def play(client):
        session, first = await opened(client)
        await session.act(Action("hold 150"))
        await session.close()
        return first, (await opened(client))[1]

    first, second = scene(play, limits=PoolLimits(num_warm=0, max_bytes=140 * 2**20))
    assert first != second


def test_a_session_process_that_grows_without_end_is_killed_in_its_session(monkeypatch):
    monkeypatch.setattr("ludus.hosting.process_pool._LOOK_S", 0.05)

    async def play(client):
        session, pid = await opened(client)
        other, _ = await opened(client)
        growing = asyncio.ensure_future(acted(session, Action("hold 20"), times=100))
        with pytest.raises(EnvironmentFailed, match=r"act: its process held \d+ MiB, twice its limit"):
            await growing
        assert ends(pid)
        return await other.act(Action("hello"))

    assert scene(play, limits=PoolLimits(num_warm=0, max_bytes=100 * 2**20)).reward == 0.5


@pytest.mark.parametrize("author", [Isolated, AsyncIsolated])
def test_a_call_that_overruns_is_killed_and_the_others_go_on(author):
    async def play(client):
        session, pid = await opened(client)
        other, _ = await opened(client)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await session.act(Action("loop"))
        assert ends(pid)
        with pytest.raises(EnvironmentFailed, match="act was given up, and its process killed"):
            await session.act(Action("hello"))
        await session.close()
        await session.close()
        return await other.act(Action("hello"))

    assert scene(play, author=author).reward == 0.5


def test_a_session_process_killed_from_outside_fails_its_session_with_the_cause():
    async def play(client):
        session, pid = await opened(client)
        acting = asyncio.ensure_future(session.act(Action("sleep 60")))
        await asyncio.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EnvironmentFailed, match=r"isolated/train/0: act: its process was killed by SIGKILL"):
            await acting
        await session.close()
        return await opened(client)

    assert scene(play)[1]


def test_what_a_session_raises_or_exits_with_is_told():
    async def play(client):
        session, _ = await opened(client)
        with pytest.raises(EnvironmentFailed, match="act raised SystemExit: as ordered"):
            await session.act(Action("leave"))
        with pytest.raises(EnvironmentFailed, match="act: its process ended with exit code 3"):
            await session.act(Action("exit 3"))

    scene(play)


def test_a_megabyte_comes_through():
    async def play(client):
        session, _ = await opened(client)
        return await session.act(Action("say 1000000"))

    assert len(text(scene(play))) == 1_000_000


def test_sessions_beyond_the_number_of_processes_wait_and_their_clock_does_not_run():
    async def play(client):
        first, pid = await opened(client)
        waiting = asyncio.ensure_future(opened(client, timeout_s=60))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await first.close()
        return pid, (await waiting)[1]

    first, second = scene(play, limits=PoolLimits(num_warm=0, max_processes=1))
    assert first == second


def test_an_open_that_takes_too_long_is_a_turn_timeout(monkeypatch):
    async def play(client):
        (task, *_) = await client.tasks("isolated", "train")
        monkeypatch.setattr("ludus.hosting.process_pool.SessionProcess.call", lambda *_, **__: asyncio.sleep(60))
        with pytest.raises(TurnTimeout, match=r"open exceeded 0\.05 s"):
            await client.open(task, seed=0, timeout_s=0.05)

    scene(play)


def test_a_warm_process_waits_for_each_session():
    async def play(client):
        await client.prepare()
        pool = client._pool
        (warm,) = pool._all
        session, pid = await opened(client)
        assert pid == warm.pid
        await until(lambda: len(pool._idle["isolated"]) >= 1)
        await session.close()
        return len(pool._all)

    assert scene(play, limits=PoolLimits(num_warm=1)) == 2


def test_an_environment_that_cannot_be_made_elsewhere_is_refused_at_once():
    class Local(Isolated):
        pass

    with pytest.raises(ConfigError, match="another process cannot make it: define its class at the top of a module"):
        LocalClient([wrap(Local)])


def test_a_process_that_dies_while_it_is_made_says_so():
    with pytest.raises(EnvironmentFailed, match="its process ended with exit code 7"):
        scene(lambda client: client.prepare(), author=Unmade, limits=PoolLimits(num_warm=1), only_in=os.getpid())


HOLDER = """
import asyncio, sys
from ludus.controller.client.local import LocalClient
from ludus.environments import wrap
from ludus.types import Action
from tests.hosting.isolated import {author}

async def main():
    client = LocalClient([wrap({author}, name="isolated")])
    tasks = await client.tasks("isolated", "train")
    session = await client.open(tasks[0], seed=0)
    print((await session.start()).messages[-1].content)
    print((await session.act(Action("start"))).messages[-1].content, flush=True)
    await session.act(Action("loop"))

asyncio.run(main())
"""


@pytest.mark.parametrize("author", ["Isolated", "AsyncIsolated"])
def test_a_killed_host_leaves_neither_a_session_process_nor_what_it_started(author):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(author=author)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    hosted, grandchild = int(holder.stdout.readline()), int(holder.stdout.readline())
    time.sleep(0.1)  # it is in its endless loop by now
    assert alive(hosted)
    assert alive(grandchild)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    assert ends(hosted)
    assert ends(grandchild)
