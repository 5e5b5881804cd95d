"""A training run and its folder: checkpoints, damage, a full disk."""

from __future__ import annotations

import asyncio
import os
import subprocess

import pytest
import torch

from ludus.engines.policies import Policies
from ludus.errors import CheckpointFailed, ConfigError, EngineFailed, LudusError, StoreFailed
from ludus.launch.train import train
from ludus.store.run_folder import RunFolder
from ludus.trainer.checkpoint import checkpoint_folder, latest_checkpoint
from tests.e2e.runs import FAKE, make_config, run


def test_a_run_leaves_an_export_a_report_and_its_evaluations(small_model, tmp_path):
    config = make_config(tmp_path, small_model, evaluation={"every": 2, "num_tasks": 2})
    result = asyncio.run(train(config))
    folder = RunFolder(config.folder)
    assert result["finished"]
    assert [line["step"] for line in folder.evaluations()] == [0, 2, 3], "before, when due, and at the end"
    assert result["before"]["version"] == 0
    assert result["after"]["version"] == 3
    assert (folder.export / "config.json").is_file()
    assert folder.report_file.is_file()
    kinds = [event["kind"] for event in folder.events()]
    assert (kinds[0], kinds[-1]) == ("started", "finished")


def test_an_export_can_be_trained_further_by_its_runs_folder(small_model, tmp_path):
    first = run(make_config(tmp_path, small_model, pipeline={"steps": 1}))
    again = run(make_config(tmp_path, first.path, name="again", pipeline={"steps": 1}))
    assert len(again.metrics()) == 1


def test_a_second_run_into_a_folder_is_refused_with_the_next_move(small_model, tmp_path):
    config = make_config(tmp_path, small_model, pipeline={"steps": 1})
    before = run(config).metrics()
    with pytest.raises(ConfigError, match=r"already holds a run.*another name.*--resume.*rm -r"):
        run(config)
    assert RunFolder(config.folder).metrics() == before


def test_a_truncated_newest_checkpoint_is_skipped_with_a_warning_and_the_older_one_is_used(small_model, tmp_path):
    store = {"checkpoint_every": 1, "keep_checkpoints": 3}
    config = make_config(tmp_path, small_model, store=store)
    run(config)
    newest = checkpoint_folder(config.folder, 3) / "model.safetensors"
    os.truncate(newest, newest.stat().st_size // 2)
    with pytest.warns(UserWarning, match="skipped a broken checkpoint"):
        folder = run(config, resume=True)
    assert [event["step"] for event in folder.events() if event["kind"] == "resumed"] == [2]
    assert [line["step"] for line in folder.metrics()] == [1, 2, 3]
    assert latest_checkpoint(config.folder) == checkpoint_folder(config.folder, 3), "and it is whole again"


def test_resuming_a_run_without_a_checkpoint_says_what_to_do(small_model, tmp_path):
    folder = RunFolder.create(make_config(tmp_path, small_model))
    folder.close()
    with pytest.raises(CheckpointFailed, match=r"no whole checkpoint.*another name"):
        run(make_config(tmp_path, small_model), resume=True)


def test_resuming_a_run_that_is_not_there_says_so(small_model, tmp_path):
    with pytest.raises(ConfigError, match="not a run folder"):
        run(make_config(tmp_path, small_model), resume=True)


def test_one_bad_session_does_not_keep_a_run_from_starting(small_model, tmp_path):
    options = {"fault": "raise", "fault_in": "start", "fault_rate": 0.5, "turns": 1}
    flaky = {"fake": {"source": FAKE, "options": options}}
    assert len(run(make_config(tmp_path, small_model, environments=flaky)).metrics()) == 3


def test_a_device_that_is_lost_under_the_engine_ends_the_run_at_once_and_by_name(small_model, tmp_path, monkeypatch):
    real, calls = Policies.launch, []

    def launch_until(self, planned, **options):
        calls.append(planned)
        if len(calls) == 20:
            raise torch.AcceleratorError("CUDA error: unspecified launch failure, as ordered")
        return real(self, planned, **options)

    monkeypatch.setattr(Policies, "launch", launch_until)
    config = make_config(tmp_path, small_model, pipeline={"steps": 50})
    with pytest.raises(EngineFailed, match=r"^cpu stopped answering: .*as ordered.*nvidia-smi.*--resume"):
        run(config)
    assert len(calls) == 20, "nothing is tried again"


# ------------------------------------------------------------------------------------------------ a full disk


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1.5 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1536k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root and the right to mount")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=False)


@pytest.mark.parametrize("checkpoint_every", [0, 1])
def test_a_full_disk_ends_the_run_with_a_named_failure_and_what_was_written_stays_readable(
    small_model, small_disk, checkpoint_every
):
    config = make_config(
        small_disk,
        small_model,
        pipeline={"steps": 100_000, "groups_per_step": 8},
        store={"checkpoint_every": checkpoint_every, "keep_checkpoints": 9},
    )
    with pytest.raises((StoreFailed, CheckpointFailed), match=r"No space left.*(free|Free)") as failure:
        run(config)
    assert isinstance(failure.value, LudusError)
    problems: list[str] = []
    folder = RunFolder(config.folder)
    stored = list(folder.read_trajectories(report=problems.append))
    assert stored
    assert len(folder.metrics(report=problems.append)) > 0
    assert problems == [], "no torn lines"
