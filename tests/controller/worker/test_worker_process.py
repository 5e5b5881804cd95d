"""A worker in a process of its own, as a person starts it, and what signals do to it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ludus.controller.records import Close
from ludus.errors import EnvironmentFailed, WorkerLost
from tests.controller.fake_controller import FakeController, act, connected, start
from tests.controller.plane import until
from tests.hosting.isolated import alive, ends

FAKE = "ludus.environments.fake:FakeEnvironment"
ROOT = Path(__file__).parents[3]


@asynccontextmanager
async def process(*arguments, controller):
    """A worker as a person starts it, registered."""
    async with controller.listening():
        ludus = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "from ludus.cli.main import main; main()", "serve", "worker", *arguments,
            "--controller", controller.url, cwd=ROOT,
        )  # fmt: skip
        try:
            arriving, ending = asyncio.ensure_future(controller.registered.get()), asyncio.ensure_future(ludus.wait())
            await asyncio.wait([arriving, ending], timeout=120, return_when=asyncio.FIRST_COMPLETED)
            assert arriving.done(), f"the worker did not register; exit status {ludus.returncode}"
            register = arriving.result()
            yield ludus, register
        finally:
            if ludus.returncode is None:
                ludus.kill()
            await ludus.wait()


def test_sigterm_drains_a_worker_process_and_it_exits_with_0():
    async def scene():
        controller = FakeController()
        async with process(FAKE, "--slots", "2", controller=controller) as (ludus, register):
            await controller.open(environment="fake_environment")
            async with connected(register.address) as client:
                await start(client)
                ludus.send_signal(signal.SIGTERM)
                await until(lambda: any(beat.draining for beat in controller.beats))
                async with asyncio.timeout(60):
                    assert (await act(client)).reward > 0
                    await client.call("close", Close("s1", "key-s1"))
                    return await ludus.wait()

    assert asyncio.run(scene()) == 0


def test_a_lease_ends_the_session_of_a_client_that_is_gone_and_the_drain_with_it():
    async def scene():
        controller = FakeController()
        async with process(FAKE, controller=controller) as (ludus, _):
            await controller.open(environment="fake_environment", lease_s=1.0)
            ludus.send_signal(signal.SIGTERM)
            async with asyncio.timeout(60):
                return await ludus.wait(), (await controller.ended.get()).cause

    assert asyncio.run(scene()) == (0, "lease")


@asynccontextmanager
async def isolated(controller):
    """(worker, client, pid of the pen) of a session in a process of its own."""
    async with process("tests.hosting.isolated:Isolated", controller=controller) as (ludus, register):
        await controller.open(environment="isolated")
        async with connected(register.address) as client:
            yield ludus, client, int((await start(client)).messages[-1].content)


def test_a_second_sigterm_ends_a_worker_at_once_with_its_session_processes():
    async def scene():
        controller = FakeController()
        async with isolated(controller) as (ludus, client, pid):
            acting = asyncio.ensure_future(act(client, "loop"))
            ludus.send_signal(signal.SIGTERM)
            await until(lambda: any(beat.draining for beat in controller.beats))  # else both may come as one
            assert ludus.returncode is None
            ludus.send_signal(signal.SIGTERM)
            async with asyncio.timeout(60):
                status = await ludus.wait()
                with pytest.raises(WorkerLost):
                    await acting
            return status, ends(pid)

    assert asyncio.run(scene()) == (143, True)


def test_a_killed_worker_leaves_no_pen():
    async def scene():
        async with isolated(FakeController()) as (ludus, client, pid):
            child = int((await act(client, "start")).messages[-1].content)
            acting = asyncio.ensure_future(act(client, "loop", turn=1, request="b"))
            await asyncio.sleep(0.1)
            assert alive(pid)
            assert alive(child)
            ludus.kill()
            with pytest.raises(WorkerLost):
                await acting
            return ends(pid), ends(child)

    assert asyncio.run(scene()) == (True, True)


def test_a_worker_process_is_idle_again_after_author_code_ran_away():
    """On a thread, on the loop, and in a system call on the loop: its processor comes to rest, and
    other sessions go on."""

    async def scene():
        controller = FakeController()
        sources = [f"tests.hosting.runaways:{author}" for author in ("BusyThread", "BusyLoop", "SleepyLoop")]
        async with process(*sources, FAKE, controller=controller) as (ludus, register):
            async with connected(register.address) as client:
                for number, environment in enumerate(["busy_thread", "busy_loop", "sleepy_loop"]):
                    away, well = f"away{number}", f"well{number}"
                    await controller.open(away, environment=environment, timeout_s=1.0)
                    await controller.open(well, environment="fake_environment")
                    await start(client, away)
                    await start(client, well)
                    with pytest.raises(EnvironmentFailed, match="was stopped"):
                        await act(client, session_id=away)
                    assert (await act(client, session_id=well)).reward > 0
            async with asyncio.timeout(60):
                while not await is_idle(ludus.pid):
                    pass
            return ludus.returncode

    assert asyncio.run(scene()) is None


async def is_idle(pid):
    """What runs away uses all of a processor's time, or its share of it; what waits uses next to
    nothing."""
    before = processor_s(pid)
    await asyncio.sleep(0.5)
    return processor_s(pid) - before < 0.1


def processor_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_the_environments_of_a_run_file_are_hosted_with_their_options(tmp_path):
    run = tmp_path / "run.toml"
    run.write_text(
        f'[environments.mine]\nat = "workers"\nsource = "{FAKE}"\noptions = {{turns = 7}}\n[environments.guess]\n'
    )

    async def scene():
        controller = FakeController()
        async with process("--run", str(run), controller=controller) as (_, register):
            return [(each.name, each.options["turns"]) for each in register.environments]

    assert asyncio.run(scene()) == [("mine", 7)]
