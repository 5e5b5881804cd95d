"""Controller, worker and client in processes of their own, and what kill -9 of each does to the
others.
"""

import asyncio
import contextlib
import os
import random
import signal
import sys

import httpx
import pytest

from ludus.controller.client.remote import RemoteClient
from ludus.errors import WorkerLost
from tests.controller.plane import until
from tests.ports import free_port

PATIENCE_S = 120.0
LUDUS = [sys.executable, "-c", "from ludus.cli.main import main; main()", "serve"]


class Plane:
    """Processes that are killed at the end, whatever happens."""

    def __init__(self, state, *, heartbeat_s):
        self.state, self.port, self.url, self.heartbeat_s = state, free_port(), "", heartbeat_s
        self._processes = []

    async def start_controller(self):
        times = ["--heartbeat-s", str(self.heartbeat_s), "--grace-s", "1"]
        options = ["--port", str(self.port), "--state", str(self.state), *times]
        self.controller = await self._start("controller", *options, stdout=asyncio.subprocess.PIPE)
        async with asyncio.timeout(PATIENCE_S):
            self.url = (await self.controller.stdout.readline()).decode().split()[-1]

    async def start_worker(self):
        already = len(await self.workers())
        environment = "ludus.environments.fake:FakeEnvironment"
        worker = await self._start("worker", environment, "--controller", self.url, "--slots", "4")
        async with asyncio.timeout(PATIENCE_S):
            while len(await self.workers()) == already:
                await asyncio.sleep(0.05)
        return worker

    async def workers(self):
        return await self.get("/workers")

    async def get(self, path):
        async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
            return (await http.get(f"{self.url}{path}")).json()

    async def kill(self, process):
        process.send_signal(signal.SIGKILL)
        await process.wait()

    async def _start(self, *arguments, stdout=asyncio.subprocess.DEVNULL):
        environment = {**os.environ, "LUDUS_TOKEN": ""}
        process = await asyncio.create_subprocess_exec(
            *LUDUS, *arguments, stdout=stdout, stderr=asyncio.subprocess.DEVNULL, env=environment
        )
        self._processes.append(process)
        return process

    async def close(self):
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def played(test, tmp_path, *, heartbeat_s):
    """Three heartbeats and the grace are what a restarted controller gives its workers to come
    back."""

    async def play():
        plane = Plane(tmp_path, heartbeat_s=heartbeat_s)
        try:
            await plane.start_controller()
            worker = await plane.start_worker()
            client = await RemoteClient.connect(plane.url, patience_s=PATIENCE_S)
            try:
                await test(plane, worker, client)
            finally:
                await client.close()
        finally:
            await plane.close()

    asyncio.run(asyncio.wait_for(play(), 5 * PATIENCE_S))


async def opened(client, number=0):
    [name] = client.environments()
    tasks = await client.tasks(name, "train")
    session = await client.open(tasks[number], seed=number)
    await session.start()
    return session


async def turn(session):
    return await session.act(await session.solve(rng=random.Random(0)))


def test_a_killed_controller_comes_back_and_finds_sessions_slots_and_clients(tmp_path):
    async def test(plane, worker, client):
        sessions = [await opened(client, number) for number in range(3)]
        await plane.kill(plane.controller)
        assert await turn(sessions[0]), "turns need no controller"
        opening = asyncio.ensure_future(opened(client, 3))
        await plane.start_controller()
        assert await turn(await opening)
        [row] = await plane.workers()
        assert row["num_sessions"] == 4
        for session in sessions:
            await session.close()
        async with asyncio.timeout(PATIENCE_S):
            while (await plane.workers())[0]["num_sessions"] != 1:
                await asyncio.sleep(0.02)

    played(test, tmp_path, heartbeat_s=20)  # a worker that is back late must not be taken for dead


def test_a_killed_workers_sessions_fail_with_the_reason_and_the_next_one_takes_over(tmp_path):
    async def test(plane, worker, client):
        session = await opened(client)
        await plane.kill(worker)
        with pytest.raises(WorkerLost, match="was lost"):
            await turn(session)
        opening = asyncio.ensure_future(opened(client, 1))
        await plane.start_worker()
        assert await turn(await opening)

    played(test, tmp_path, heartbeat_s=20)


def test_a_worker_killed_while_the_controller_was_down_is_found_out(tmp_path):
    async def test(plane, worker, client):
        session = await opened(client)
        noted = session._opened.session_id.encode()
        await until(
            lambda: any(noted in file.read_bytes() for file in tmp_path.iterdir())
        )  # else only the worker would know of it
        await plane.kill(plane.controller)
        await plane.kill(worker)
        await plane.start_controller()
        with pytest.raises(WorkerLost, match="was lost"):
            await turn(session)
        assert (await plane.get("/sessions"))["total"] == 0

    played(test, tmp_path, heartbeat_s=1.5)
