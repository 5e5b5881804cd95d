import os
import signal
import subprocess
import sys

import pytest

from ludus.config import parse_config
from ludus.errors import ConfigError, StoreFailed
from ludus.store.recorder import Recorder
from ludus.store.run_folder import RunFolder
from tests.store.examples import make_trajectory


def test_a_new_run_keeps_its_resolved_config(config):
    folder = RunFolder.create(config)
    assert folder.path == config.folder
    assert RunFolder.open(folder.path).config() == config


def test_an_existing_run_is_not_overwritten_and_the_next_moves_are_named(config):
    RunFolder.create(config).close()
    with pytest.raises(ConfigError, match=r"already holds a run.*name=.*--resume.*rm -r"):
        RunFolder.create(config)


def test_a_run_is_found_by_path_and_by_name(config):
    RunFolder.create(config).close()
    assert RunFolder.open(config.folder).path == RunFolder.open("first", root=config.store.folder).path


def test_an_unknown_run_gets_the_near_name(config):
    RunFolder.create(config).close()
    with pytest.raises(ConfigError, match="Did you mean 'first'"):
        RunFolder.open("frist", root=config.store.folder)


def test_a_second_writer_is_refused_and_told_who_writes(config):
    folder = RunFolder.create(config)
    with pytest.raises(StoreFailed, match=f"written by process {os.getpid()}"):
        RunFolder.resume(config, step=0)
    folder.close()
    RunFolder.resume(config, step=0).close()


HOLDER = """
import sys, time
from pathlib import Path
from ludus.config import parse_config
from ludus.store.run_folder import RunFolder
folder = RunFolder.create(parse_config({"name": "first", "store": {"folder": sys.argv[1]}}))
print("locked", flush=True)
time.sleep(60)
"""


def test_the_lock_of_a_killed_process_is_taken_over(config):
    command = [sys.executable, "-c", HOLDER, config.store.folder]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    with pytest.raises(StoreFailed, match=f"written by process {process.pid}"):
        RunFolder.resume(config, step=0)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    RunFolder.resume(config, step=0).close()


def test_resuming_cuts_the_metrics_after_the_step_and_marks_the_trajectories(config):
    with Recorder(RunFolder.create(config), trajectories=True) as recorder:
        for step in (1, 2, 3):
            recorder.metrics(step, {"train/reward/guess": step})
            recorder.evaluation(step, {"environments": []})
            recorder.trajectory(make_trajectory(f"first-{step}"), step=step, group_id="g")
    with Recorder(RunFolder.resume(config, step=2), trajectories=True) as recorder:
        recorder.metrics(3, {"train/reward/guess": 30.0})
        recorder.trajectory(make_trajectory("second-3"), step=3, group_id="g")

    folder = RunFolder.open(config.folder)
    assert [line["train/reward/guess"] for line in folder.metrics()] == [1, 2, 30]
    assert [line["step"] for line in folder.evaluations()] == [1, 2]
    superseded = {record["id"]: record.get("superseded", False) for record in folder.records()}
    assert superseded == {"first-1": False, "first-2": False, "first-3": True, "second-3": False}
    assert [stored.trajectory.id for stored in folder.read_trajectories()] == ["first-1", "first-2", "second-3"]


def test_a_resumed_run_may_be_longer_than_the_first(config):
    RunFolder.create(config).close()
    longer = parse_config(config.model_dump() | {"pipeline": {"steps": 500}})
    RunFolder.resume(longer, step=0).close()
    assert RunFolder.open(config.folder).config().pipeline.steps == 500


def test_a_group_that_a_resumed_run_played_again_is_read_once(config):
    with Recorder(RunFolder.create(config), trajectories=True) as recorder:
        for name in ("trained", "untrained", "never-again"):
            recorder.trajectory(make_trajectory(name, reward=0.0), step=2, group_id="g")
    with Recorder(RunFolder.resume(config, step=2), trajectories=True) as recorder:
        recorder.trajectory(make_trajectory("untrained", reward=1.0), step=3, group_id="g")
    read = [stored.trajectory for stored in RunFolder.open(config.folder).read_trajectories()]
    assert [(each.id, each.reward) for each in read] == [("trained", 0), ("never-again", 0), ("untrained", 1)]
