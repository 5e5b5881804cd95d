"""Workers that a run starts and stops itself, as real processes: ready or it says why; they come back; none outlives the run."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ludus.config import dump_config, load_config, parse_config
from ludus.errors import ControllerFailed, WorkerLost
from ludus.launch.placement.workers import WorkersClient, hosted_part
from ludus.processes import supervisor as supervisor_module
from ludus.types import Action

PATIENCE_S = 180.0
FAKE = "ludus.environments.fake:FakeEnvironment"
FAKES = {"fake": {"source": FAKE, "at": "workers", "options": {"turns": 2, "blocking": False}}}


def config_of(environments: dict[str, Any] = FAKES, **workers: Any) -> Any:
    return parse_config({"environments": environments, "workers": {"slots": 8, **workers}})


@asynccontextmanager
async def workers(folder: Path, **given: Any):
    client = await WorkersClient.start(config_of(**given), folder=folder)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield client
    finally:
        await client.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.02)


async def first_task(client: Any) -> Any:
    return (await client.tasks("fake", "train"))[0]


async def played(client: Any, task: Any = None) -> float:
    task = task or await first_task(client)
    session = await client.open(task, seed=0)
    await session.start()
    reward = sum([(await session.act(Action(word))).reward for word in task.data["words"]])
    await session.close()
    return reward


def test_a_workers_run_file_can_be_read_whatever_the_run_says_of_environments_elsewhere(tmp_path):
    elsewhere = {"guess": {}, "wordle": {"at": "http://127.0.0.1:7100"}}
    sections = {"horizons": {"guess": {"turns": [2, 4], "every": 5}}, "controller": {"token_file": "token"}}
    run = parse_config({"environments": {**FAKES, **elsewhere}, "workers": {"num": 2}, **sections})
    (tmp_path / "run.toml").write_text(dump_config(hosted_part(run)))
    assert load_config(tmp_path / "run.toml").environments == {"fake": run.environments["fake"]}


def test_they_play_and_end_with_the_client_and_the_token_stays_in_memory(tmp_path):
    async def main():
        async with workers(tmp_path, num=2) as client:
            assert await played(client) == pytest.approx(1)
            processes = [client.controller_process, *client.worker_processes]
            assert {os.getsid(each.pid) for each in processes}.isdisjoint({os.getsid(0)}), (
                "a Ctrl-C is for the run alone"
            )
            token = processes[0].environ["LUDUS_TOKEN"]
            shown = [Path(f"/proc/{each.pid}/cmdline").read_bytes() for each in processes]
            written = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
            assert not any(token.encode() in text for text in [*shown, *written])
            return [each.pid for each in processes]

    assert not any(map(alive, asyncio.run(main())))


def test_a_worker_and_a_controller_that_are_killed_come_back_and_the_run_goes_on(tmp_path):
    async def main():
        async with workers(tmp_path) as client:
            (worker,), controller = client.worker_processes, client.controller_process
            session = await client.open(await first_task(client), seed=0)
            await session.start()
            os.kill(worker.pid, signal.SIGKILL)
            with pytest.raises((WorkerLost, ControllerFailed)):
                await session.act(Action("x"))
            assert await played(client) == pytest.approx(1)
            session = await client.open(await first_task(client), seed=0)
            await session.start()
            os.kill(controller.pid, signal.SIGKILL)
            assert (await session.act(Action("x"))).messages, "a live session does not need the controller"
            assert await played(client) == pytest.approx(1)
            assert (worker.num_restarts, controller.num_restarts) == (1, 1)

    asyncio.run(main())


def test_one_that_keeps_dying_is_given_up_and_sessions_fail_with_its_last_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor_module, "MAX_RESTARTS", 1)

    async def main():
        async with workers(tmp_path) as client:
            (worker,), task = client.worker_processes, await first_task(client)
            for _ in range(2):
                pid = worker.pid
                os.kill(pid, signal.SIGKILL)
                await until(lambda pid=pid: worker.given_up or (worker.pid != pid and alive(worker.pid)))
            with pytest.raises(
                WorkerLost, match=r"all of the run's own workers are gone.*ended 2 times.*killed by SIGKILL"
            ):
                await played(client, task)

    asyncio.run(main())


def test_workers_that_cannot_start_say_why_and_leave_nothing_behind(tmp_path):
    missing = {"fake": {"source": "missing.py", "at": "workers"}}
    before = children_of(os.getpid())  # other tests' services
    with pytest.raises(ControllerFailed, match=r"(?s)did not start.*worker 0 ended with exit code 1.*missing.py"):
        asyncio.run(WorkersClient.start(config_of(missing), folder=tmp_path))
    assert set(children_of(os.getpid())) <= set(before)


RUN = """
import asyncio, sys
from pathlib import Path
from ludus.launch.placement.workers import WorkersClient
from tests.launch.test_workers import config_of

async def main():
    client = await WorkersClient.start(config_of(), folder=Path(sys.argv[1]))
    task = (await client.tasks("fake", "train"))[0]
    await (await client.open(task, seed=0)).start()
    print("playing", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def children_of(pid: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(folder.name))
    return found


def test_nothing_survives_when_the_run_is_killed(tmp_path):
    with subprocess.Popen([sys.executable, "-c", RUN, str(tmp_path)], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"playing\n"
        started = children_of(run.pid)
        assert len(started) == 3, "a controller, a worker, and the supervisor's shell"
        run.kill()
    give_up = time.monotonic() + PATIENCE_S
    while any(map(alive, started)) and time.monotonic() < give_up:
        time.sleep(0.02)
    assert not any(map(alive, started))
