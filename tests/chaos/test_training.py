"""`ludus train` with its environments in its own workers, while somebody kills: a worker, and the
run itself.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ludus.config import RunConfig, dump_config
from ludus.sandboxes import reaper
from ludus.store.run_folder import RunFolder
from ludus.trainer.checkpoint import checkpoint_folder
from ludus.types import Stop, Trajectory
from tests.chaos.plane import Plane, descendants, kill_process, wait_until, words_of
from tests.e2e.runs import make_config

PATIENCE_S = 240.0
STEPS = 3


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

    def wait_for_held_turn(self) -> int:
        """A worker in whose sandbox a session waits in the middle of a turn, until `plane.hold` is
        gone."""
        hosts: list[int] = []

        def is_held() -> bool:
            assert self.process.poll() is None, self.plane.log("run").read_text()
            hosts[:] = set(self.workers()).intersection(self.plane.holders())
            return bool(hosts)

        wait_until(is_held, PATIENCE_S, "a worker holds a turn")
        assert any(map(self.plane.sleeps, descendants(hosts[0])))
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
        rollout={"turn_timeout_s": PATIENCE_S},
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
    must_leave_nothing(plane)


def kill_a_run(config: RunConfig, plane: Plane) -> set[str]:
    """In the middle of a turn, and with a checkpoint; the trajectories that were on disk by
    then."""
    plane.hold.symlink_to(checkpoint_folder(config.folder, 1))  # a link to nowhere until there is one
    run = Run(config, plane)
    run.wait_for_held_turn()
    assert len(run.workers()) == 2
    plane.kill("run")
    wait_until(lambda: plane.leftovers() == [], PATIENCE_S, "no controller, worker or sandbox is left")
    return {stored.trajectory.id for stored in RunFolder(run.folder).read_trajectories()}


def kill_a_worker(config: RunConfig, plane: Plane) -> None:
    """Of the same run, resumed, which then ends as it should."""
    run = Run(config, plane, "--resume")
    worker = run.wait_for_held_turn()
    assert kill_process(worker, still=lambda: worker in run.workers())
    plane.hold.unlink()
    run.wait_for_end()


def must_count_failures(folder: RunFolder, failed: list[Trajectory]) -> None:
    assert failed, "sessions were running where it was killed"
    assert {each.failure.partition(":")[0] for each in failed} <= {"WorkerLost", "ControllerFailed"}
    counted = sum(row.get("trajectories/failed/failed", 0) for row in folder.metrics())
    assert 0 < counted <= len(failed), "those of the last moment belong to no step"


def must_leave_nothing(plane: Plane) -> None:
    wait_until(lambda: plane.leftovers() == [], PATIENCE_S, "no process is left")
    reaper.sweep(plane.state)  # the run may end before the worker that came in place of the killed one does so
    assert plane.sandboxes_left() == []
