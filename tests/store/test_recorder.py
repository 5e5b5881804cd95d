import json
import subprocess
import sys

import pytest

from ludus.errors import StoreFailed
from ludus.store import recorder as recorder_module
from ludus.store.recorder import Recorder
from ludus.store.run_folder import RunFolder
from tests.store.examples import make_trajectory


def open_recorder(config, **options):
    return Recorder(RunFolder.create(config), **({"tensorboard": False, "trajectories": True} | options))


def test_everything_is_readable_while_the_run_goes_on(config):
    recorder = open_recorder(config)
    recorder.metrics(1, {"staleness/mean": 0.5})
    recorder.event("checkpoint", step=1, path="checkpoints/1")
    recorder.trajectory(make_trajectory("t"), step=1, group_id="g")
    recorder.evaluation(1, {"split": "test"})

    reader = RunFolder.open(config.folder)
    assert reader.metrics()[0]["staleness/mean"] == 0.5
    assert reader.events()[0] | {"time": 0} == {"kind": "checkpoint", "time": 0, "step": 1, "path": "checkpoints/1"}
    assert next(reader.read_trajectories()).trajectory.id == "t"
    assert reader.evaluations()[0]["split"] == "test"


def test_listeners_hear_what_was_written(config):
    heard = []
    recorder = open_recorder(config, listeners=[lambda kind, fields: heard.append((kind, fields))])
    recorder.metrics(1, {"staleness/max": 1})
    recorder.event("started", steps=5)
    trajectory = make_trajectory()
    recorder.trajectory(trajectory, step=1, group_id="g")
    assert [kind for kind, _ in heard] == ["metrics", "started", "trajectory"]
    assert heard[0][1]["step"] == 1
    assert heard[2][1]["trajectory"] is trajectory


def test_trajectories_go_on_in_a_new_file_when_one_is_full(config, monkeypatch):
    monkeypatch.setattr(recorder_module, "MAX_FILE_BYTES", 2000)
    with open_recorder(config) as recorder:
        for number in range(6):
            recorder.trajectory(make_trajectory(f"t{number}"), step=0, group_id="g")
    folder = RunFolder.open(config.folder)
    assert len(folder.trajectory_files()) > 1
    assert [record["id"] for record in folder.records()] == [f"t{number}" for number in range(6)]


def test_without_trajectories_none_are_stored_but_listeners_still_hear_of_them(config):
    heard = []
    with open_recorder(config, trajectories=False, listeners=[lambda kind, _: heard.append(kind)]) as recorder:
        recorder.trajectory(make_trajectory(), step=0, group_id="g")
    assert heard == ["trajectory", "closed"]
    assert not RunFolder.open(config.folder).trajectory_files()


def test_a_full_disk_stops_the_run_with_a_name_and_a_next_move(config):
    config.folder.mkdir(parents=True)
    (config.folder / "metrics.jsonl").symlink_to("/dev/full")
    recorder = open_recorder(config)
    recorder.trajectory(make_trajectory("kept"), step=0, group_id="g")
    with pytest.raises(StoreFailed, match=r"metrics\.jsonl.*No space left.*--resume"):
        recorder.metrics(1, {"optimizer/loss": 0.0})
    assert next(RunFolder.open(config.folder).records())["id"] == "kept"


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder.tensorboard))
    accumulator.Reload()
    return {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def test_tensorboard_reads_the_metrics_and_a_resumed_run_draws_one_curve(config):
    with open_recorder(config, tensorboard=True) as recorder:
        for step in (1, 2, 3):
            recorder.metrics(step, {"train/reward/guess": step / 4})
    with Recorder(RunFolder.resume(config, step=1), tensorboard=True, trajectories=False) as recorder:
        recorder.metrics(2, {"train/reward/guess": 0.75})
    assert scalars(recorder.folder) == {"train/reward/guess": [(1, 0.25), (2, 0.75)]}


def test_recording_with_tensorboard_never_imports_torch(tmp_path):
    script = f"""
import json, sys
from ludus.config import parse_config
from ludus.store.recorder import Recorder
from ludus.store.run_folder import RunFolder
config = parse_config({{"store": {{"folder": {str(tmp_path)!r}}}}})
with Recorder(RunFolder.create(config), tensorboard=True, trajectories=True) as recorder:
    recorder.metrics(1, {{"optimizer/loss": 1.0}})
print(json.dumps(sorted({{"torch", "transformers", "tensorflow", "matplotlib"}} & set(sys.modules))))
"""
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert json.loads(output) == []
