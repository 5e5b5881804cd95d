import json
import subprocess
import sys

from ludus.store.recorder import Recorder
from ludus.store.run_folder import RunFolder
from ludus.trackers.tracker import make_tracker


def record(folder):
    return Recorder(folder, trajectories=False, listeners=[make_tracker("tensorboard", folder)])


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder.tensorboard))
    accumulator.Reload()
    return {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def test_tensorboard_reads_the_metrics_and_a_resumed_run_draws_one_curve(config):
    with record(RunFolder.create(config)) as recorder:
        for step in (1, 2, 3):
            recorder.metrics(step, {"train/reward/guess": step / 4})
    with record(RunFolder.resume(config, step=1)) as recorder:
        recorder.metrics(2, {"train/reward/guess": 0.75})
    assert scalars(recorder.folder) == {"train/reward/guess": [(1, 0.25), (2, 0.75)]}


def test_recording_with_tensorboard_never_imports_torch(tmp_path):
    script = f"""
import json, sys
from ludus.config import parse_config
from ludus.store.recorder import Recorder
from ludus.store.run_folder import RunFolder
from ludus.trackers.tracker import trackers_of
config = parse_config({{"store": {{"folder": {str(tmp_path)!r}}}}})
folder = RunFolder.create(config)
with Recorder(folder, trajectories=True, listeners=trackers_of(config.store, folder)) as recorder:
    recorder.metrics(1, {{"optimizer/loss": 1.0}})
print(json.dumps(sorted({{"torch", "transformers", "tensorflow", "matplotlib"}} & set(sys.modules))))
"""
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert json.loads(output) == []


def test_a_full_disk_is_reported_once_and_does_not_end_the_run(config):
    folder = RunFolder.create(config)
    tracker = make_tracker("tensorboard", folder)
    tracker.tracker._writer._writer = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    with Recorder(folder, trajectories=False, listeners=[tracker]) as recorder:
        for step in (1, 2):
            recorder.metrics(step, {"optimizer/loss": 1.0})
    assert [line["step"] for line in folder.metrics()] == [1, 2]
    (event,) = folder.events()
    assert event["kind"] == "listener_failed"
    assert "tracker 'tensorboard' failed at 'metrics': OSError: [Errno 28] No space left on device" in event["text"]
