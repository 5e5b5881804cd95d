"""Rollout processes. That their trajectories are those of this process: tests/e2e/test_places.py."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ludus.config import parse_config
from ludus.errors import ConfigError, EngineFailed, EnvironmentFailed, WorkerLost
from ludus.launch.placement.processes import ProcessPlayer, Setup
from ludus.models.loading.tiny import make_tiny
from ludus.types import Completion, Order, Stop, Task
from tests.e2e.runs import FAKE
from tests.launch.chat_stub import ChatStub

PATIENCE_S = 60.0
WORLDS = Path(__file__).with_name("hard_worlds.py")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_tiny(
        tmp_path_factory.mktemp("tiny"), corpus=["go a b c"] * 50, seed=0, layers=1, hidden=32, context=256
    )


class Says:
    """Samples the same at once, and knows which session asked; or raises, or never answers."""

    def __init__(self, *, error: Exception | None = None, never: bool = False) -> None:
        self.error, self.never = error, never
        self.asked: list[tuple[str, int]] = []
        self.released: list[str] = []
        self.cancelled = 0

    async def generate(self, ids, *, sampling, session_id, policy):
        self.asked.append((session_id, len(ids)))
        if self.error is not None:
            raise self.error
        try:
            await asyncio.sleep(3600 if self.never else 0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Completion((1, 2), (-0.5, -0.25), (7, 7), stop="end")

    async def release(self, session_id):
        self.released.append(session_id)


def setup(tmp_path: Path, model: Path, *, source: str = FAKE, options=None, **sections) -> Setup:
    config = parse_config(
        {
            "name": "apart",
            "model": {"name": str(model), "device": "cpu"},
            "environments": {"fake": {"source": source, "options": {"turns": 2, **(options or {})}}},
            "rollout": {"max_invalid": 9, **sections.pop("rollout", {})},
            "store": {"folder": str(tmp_path)},
            **sections,
        }
    )
    return Setup.of(config, folder=str(tmp_path), model_folder=str(model))


@asynccontextmanager
async def playing(made: Setup, sampler, *, num: int = 1):
    apart = await ProcessPlayer.start(made, num=num)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await apart.ready(sampler)
            yield apart
    finally:
        await apart.close()


def order(name: str = "g1", *, size: int = 3, **changes) -> Order:
    return Order(
        name,
        Task("fake/train/0", "fake", "train", {"words": ["a", "b"]}),
        seed=(5,),
        attempts=tuple(range(size)),
        born=4,
        **changes,
    )


def pids(apart: ProcessPlayer) -> list[int]:
    return [process.process.pid for process in apart.processes]


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return (
        Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z" if Path("/proc").exists() else False
    )


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()] + [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        if task.name != str(pid)
        for child in (task / "children").read_text().split()
    ]


def wait_until_gone(found: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not all(is_gone(pid) for pid in found):
        assert time.monotonic() < deadline, "they live on"
        time.sleep(0.05)


def test_a_group_is_played_there_and_spoken_for_here(tmp_path, model):
    sampler, heard = Says(), []

    async def main():
        async with playing(setup(tmp_path, model), sampler, num=2) as apart:
            groups = await asyncio.gather(
                *(apart.play(order(f"g{n}", max_turns=1), on_trajectory=heard.append) for n in range(4))
            )
            while len(sampler.released) < 12:
                await asyncio.sleep(0.01)
            return groups, [len(process.playing) for process in apart.processes]

    groups, left = asyncio.run(main())
    assert [(group.id, group.born, len(group.trajectories)) for group in groups] == [(f"g{n}", 4, 3) for n in range(4)]
    first = groups[0].trajectories[1]
    assert (first.id, first.attempt, first.stop, first.max_turns) == ("g0.1", 1, Stop.MAX_TURNS, 1)
    assert first.sequences[0].ids[-2:].tolist() == [1, 2]
    assert first.sequences[0].versions[-2:].tolist() == [7, 7]
    assert len(heard) == 12, "each is heard of as soon as it is over"
    assert sorted(sampler.released) == sorted(trajectory.id for trajectory in heard)
    assert left == [0, 0]


def test_an_endpoint_in_text_is_asked_from_there(tmp_path, model):
    with ChatStub(lambda body: {"content": "a"}) as stub:
        outside = {"outside": {"far": {"url": stub.url, "chance": 0.5}}}
        made = setup(tmp_path, model, cross_policy=outside, algorithm={"off_policy": "mask"})

        async def main():
            async with playing(made, Says()) as apart:
                return await apart.play(order(size=1, others={"far": 1.0}))

        group = asyncio.run(main())
    assert stub.bodies[0]["messages"][0]["content"]
    assert group.trajectories[0].turns[0].policy == "far"


def test_a_failure_to_speak_is_the_sessions_and_has_its_name(tmp_path, model):
    async def main():
        async with playing(setup(tmp_path, model), Says(error=EngineFailed("no weights"))) as apart:
            return await apart.play(order(size=2, retries=1), on_trajectory=lambda _: None)

    group = asyncio.run(main())
    assert [each.failure for each in group.failed] == ["EngineFailed: no weights"] * 4
    assert [each.attempt for each in group.failed] == [0, 0, 1, 1]


def test_a_fault_of_our_own_here_ends_the_run(tmp_path, model):
    async def main():
        async with playing(setup(tmp_path, model), Says(error=ZeroDivisionError("ours"))) as apart:
            with pytest.raises(ZeroDivisionError, match="ours"):
                await apart.play(order(), on_trajectory=lambda _: None)
            with pytest.raises(ZeroDivisionError):
                await apart.play(order("g2"), on_trajectory=lambda _: None)

    asyncio.run(main())


def test_a_session_that_is_out_of_time_there_is_no_longer_spoken_for_here(tmp_path, model):
    sampler = Says(never=True)

    async def main():
        async with playing(setup(tmp_path, model, rollout={"session_timeout_s": 0.3}), sampler) as apart:
            group = await apart.play(order(size=2), on_trajectory=lambda _: None)
            while sampler.cancelled < 2:
                await asyncio.sleep(0.01)
            return group

    group = asyncio.run(main())
    assert [each.stop for each in group.failed] == [Stop.SESSION_TIMEOUT] * 2
    assert "while generating" in group.failed[0].failure


def test_a_group_that_is_cancelled_here_ends_there_and_can_be_played_again(tmp_path, model):
    sampler = Says(never=True)

    async def main():
        async with playing(setup(tmp_path, model), sampler) as apart:
            doomed = asyncio.create_task(apart.play(order("g1"), on_trajectory=lambda _: None))
            while len(sampler.asked) < 3:
                await asyncio.sleep(0.01)
            while not apart.stats().longest:
                await asyncio.sleep(0.01)
            waits, spent = apart.stats().longest, apart.stats().spent
            doomed.cancel()
            while sampler.cancelled < 3:
                await asyncio.sleep(0.01)
            sampler.never = False
            return waits, spent, await apart.play(order("g1"), on_trajectory=lambda _: None)

    waits, spent, group = asyncio.run(main())
    assert "(fake/train/0): generating for" in waits[0], "a stall explains itself from there too"
    assert spent["generating"] > 0
    assert len(group.trajectories) == 3


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"source": "no/such/file.py:World"}, (ConfigError, EnvironmentFailed), "no/such/file.py"),
        ({"options": {"trunes": 3}}, ConfigError, "trunes"),
    ],
)
def test_what_cannot_begin_there_is_said_here(tmp_path, model, changes, error, said):
    async def main():
        with pytest.raises(error, match=said):
            async with playing(setup(tmp_path, model, **changes), Says()):
                raise AssertionError("it began")

    asyncio.run(main())


def test_a_process_that_is_killed_ends_whatever_it_was_playing_by_name(tmp_path, model):
    sampler = Says(never=True)

    async def main():
        async with playing(setup(tmp_path, model), sampler) as apart:
            doomed = asyncio.create_task(apart.play(order(), on_trajectory=lambda _: None))
            while len(sampler.asked) < 3:
                await asyncio.sleep(0.01)
            (pid,) = pids(apart)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(WorkerLost, match=rf"process {pid}.*killed by SIGKILL.*1 groups.*--resume"):
                await doomed
            with pytest.raises(WorkerLost):
                await apart.play(order("g2"), on_trajectory=lambda _: None)
            return pid

    assert is_gone(asyncio.run(main()))


def test_a_process_that_is_killed_is_missed_also_where_what_it_forked_lives_on_and_that_is_ended_too(tmp_path, model):
    sampler = Says(never=True)

    async def main():
        async with playing(setup(tmp_path, model, source=f"{WORLDS}:Forking"), sampler) as apart:
            doomed = asyncio.create_task(apart.play(order(), on_trajectory=lambda _: None))
            while len(sampler.asked) < 3:
                await asyncio.sleep(0.01)
            (pid,) = pids(apart)
            left = children_of(pid)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(WorkerLost, match="killed by SIGKILL"):
                await doomed
            return left

    left = asyncio.run(main())
    assert len(left) >= 3
    wait_until_gone(left)


def test_what_cannot_be_sent_there_ends_its_group_by_name_and_no_other(tmp_path, model):
    task = Task("fake/train/1", "fake", "train", {"words": ["a"], "judge": lambda answer: 1.0})

    async def main():
        async with playing(setup(tmp_path, model), Says()) as apart:
            doomed = apart.play(Order("g1", task, seed=(1,), attempts=(0, 1)), on_trajectory=lambda _: None)
            fine = apart.play(order("g2"), on_trajectory=lambda _: None)
            return await asyncio.gather(doomed, fine, return_exceptions=True)

    failed, played = asyncio.run(main())
    assert isinstance(failed, EnvironmentFailed)
    assert re.search(r"task fake/train/1 cannot be sent.*session_processes = 0", str(failed))
    assert len(played.trajectories) == 3


def test_what_cannot_be_sent_back_is_said(tmp_path, model):
    async def main():
        async with playing(setup(tmp_path, model, source=f"{WORLDS}:Unpicklable"), Says()) as apart:
            with pytest.raises(EnvironmentFailed, match=r"a trajectory of fake/train/0 cannot be sent.*mappingproxy"):
                await apart.play(order(), on_trajectory=lambda _: None)

    asyncio.run(main())


def test_options_that_cannot_be_sent_are_refused_before_a_process_is_started(tmp_path, model):
    with pytest.raises(EnvironmentFailed, match="the run file cannot be sent"):
        setup(tmp_path, model, options={"latency_s": threading.Lock()})


def test_modules_are_found_there_as_they_are_here(tmp_path, model, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "my_worlds.py").write_text("from ludus.environments.fake import FakeEnvironment as Mine\n")
    monkeypatch.syspath_prepend(tmp_path / "mine")

    async def main():
        async with playing(setup(tmp_path, model, source="my_worlds:Mine"), Says()) as apart:
            return await apart.play(order(), on_trajectory=lambda _: None)

    assert len(asyncio.run(main()).trajectories) == 3


def test_closing_ends_the_processes_even_where_an_environment_does_not_let_go(tmp_path, model, monkeypatch):
    monkeypatch.setattr("ludus.launch.placement.processes.STOP_S", 1.0)
    hangs = {"fault": "hang", "fault_in": "close", "hang_s": 3600}

    async def main():
        async with playing(setup(tmp_path, model, options=hangs), Says(never=True)) as apart:
            doomed = asyncio.create_task(apart.play(order(), on_trajectory=lambda _: None))
            await asyncio.sleep(0.5)
            found = pids(apart)
        with pytest.raises(WorkerLost, match="was closed"):
            await doomed
        return found

    assert all(is_gone(pid) for pid in asyncio.run(main()))


def test_one_that_has_not_begun_yet_is_not_waited_for(tmp_path, model):
    async def main():
        apart = await ProcessPlayer.start(setup(tmp_path, model), num=2)
        await apart.close()
        return [process.process.returncode for process in apart.processes]

    assert asyncio.run(main()) == [-signal.SIGKILL] * 2


def test_none_outlives_a_run_that_is_killed_nor_does_what_they_have_started(tmp_path, model):
    script = tmp_path / "run.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import asyncio
            from pathlib import Path
            from tests.launch.test_rollout_processes import WORLDS, Says, children_of, order, pids, setup
            from ludus.launch.placement.processes import ProcessPlayer

            async def main():
                sampler, forking = Says(never=True), f"{{WORLDS}}:Forking"
                apart = await ProcessPlayer.start(
                    setup(Path({str(tmp_path)!r}), Path({str(model)!r}), source=forking), num=2
                )
                await apart.ready(sampler)
                playing = asyncio.create_task(apart.play(order(), on_trajectory=lambda _: None))
                while len(sampler.asked) < 3:
                    await asyncio.sleep(0.01)
                print(*pids(apart), *(child for pid in pids(apart) for child in children_of(pid)), flush=True)
                await playing

            asyncio.run(main())
            """
        )
    )
    root = Path(__file__).parents[2]
    environ = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"}
    run = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environ)
    assert run.stdout is not None
    found = [int(pid) for pid in run.stdout.readline().split()]
    run.kill()
    run.wait()
    assert len(found) >= 5, "two processes, and what three sessions have started"
    wait_until_gone(found)
