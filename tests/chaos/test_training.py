"""`ludus train` with its environments in its own workers, while somebody kills: a worker, and the run itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ludus.config import RunConfig, dump_config
from ludus.sandboxes import reaper
from ludus.store.run_folder import RunFolder
from ludus.trainer.checkpoint import latest_checkpoint
from ludus.types import Stop, Trajectory
from tests.chaos.plane import Plane, descendants, kill_process, wait_until, words_of
from tests.e2e.runs import make_config

PATIENCE_S = 120.0
STEPS = 4


class Run:
    """`ludus train`, in a process of its own."""

    def __init__(self, config: RunConfig, plane: Plane, *arguments: str) -> None:
        self.plane, self.folder = plane, Path(config.folder)
        run_file = plane.folder / "run.toml"
        run_file.write_text(dump_config(config))
        plane.spawn("run", "-m", "ludus.cli.attached", "train", str(run_file), *arguments)
        self.process = plane.running["run"]

    def workers(self) -> list[int]:
        return [pid for pid in descendants(self.process.pid) if "worker" in words_of(pid)]

    def can_be_resumed(self) -> bool:
        """A step's figures are written before its checkpoint, so only the checkpoint tells."""
        assert self.process.poll() is None, self.plane.log("run").read_text()
        return latest_checkpoint(self.folder) is not None

    def wait_for_sandbox(self) -> int:
        """A worker that hosts a session now."""
        hosts: list[int] = []

        def is_hosting() -> bool:
            assert self.process.poll() is None, self.plane.log("run").read_text()
            hosts[:] = [pid for pid in self.workers() if any(map(self.plane.sleeps, descendants(pid)))]
            return bool(hosts)

        wait_until(is_hosting, PATIENCE_S, "a worker hosts a session")
        return hosts[0]

    def wait_for_end(self) -> None:
        assert self.process.wait(PATIENCE_S) == 0, self.plane.log("run").read_text()
        self.plane.forget("run")


@pytest.fixture
def plane(tmp_path):
    plane = Plane(tmp_path)
    yield plane
    plane.close()


@pytest.fixture
def config(small_model, tmp_path):
    source = "tests.chaos.worlds:Boxed"
    return make_config(
        tmp_path,
        small_model,
        environments={"boxed": {"source": source, "at": "workers"}},
        workers={"num": 2, "slots": 4},
        pipeline={"steps": STEPS, "groups_per_step": 2},
        store={"checkpoint_every": 1},
    )


def test_a_killed_run_leaves_nothing_behind_and_resumed_it_goes_on_to_its_end_although_a_worker_is_killed(
    config, plane
):
    recorded = kill_a_run(config, plane)
    kill_a_worker(config, plane)
    folder = RunFolder(Path(config.folder))
    assert len(folder.metrics()) == STEPS
    played = [stored.trajectory for stored in folder.read_trajectories()]
    times = Counter(trajectory.id for trajectory in played)
    assert [id for id, number in times.items() if number > 1] == []
    assert recorded <= times.keys(), "what was recorded stays"
    must_count_failures(folder, [trajectory for trajectory in played if trajectory.stop is Stop.FAILED])
    nothing_may_be_left(plane)


def kill_a_run(config: RunConfig, plane: Plane) -> set[str]:
    """In the middle of its second step; the trajectories that were on disk by then."""
    run = Run(config, plane)
    wait_until(run.can_be_resumed, PATIENCE_S, "a step and its checkpoint")
    run.wait_for_sandbox()
    assert len(run.workers()) == 2
    plane.kill("run")
    wait_until(lambda: plane.leftovers() == [], PATIENCE_S / 6, "no controller, worker or sandbox is left")
    return {stored.trajectory.id for stored in RunFolder(run.folder).read_trajectories()}


def kill_a_worker(config: RunConfig, plane: Plane) -> None:
    """Of the same run, resumed, which then ends as it should."""
    run = Run(config, plane, "--resume")
    worker = run.wait_for_sandbox()
    assert kill_process(worker, still=lambda: worker in run.workers())
    run.wait_for_end()


def must_count_failures(folder: RunFolder, failed: list[Trajectory]) -> None:
    assert failed, "sessions were running where it was killed"
    assert {each.failure.partition(":")[0] for each in failed} <= {"WorkerLost", "ControllerFailed"}
    counted = sum(row.get("trajectories/failed/failed", 0) for row in folder.metrics())
    assert 0 < counted <= len(failed), "those of the last moment belong to no step"


def nothing_may_be_left(plane: Plane) -> None:
    wait_until(lambda: plane.leftovers() == [], PATIENCE_S / 6, "no process is left")
    reaper.sweep(plane.state)  # the run may end before the worker that came in place of the killed one does so
    assert plane.sandboxes_left() == []
