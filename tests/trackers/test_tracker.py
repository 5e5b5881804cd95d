import pytest

from ludus.errors import ConfigError
from ludus.store.recorder import Recorder
from ludus.store.run_folder import RunFolder
from ludus.trackers.tracker import make_tracker, trackers_of
from tests.store.examples import make_trajectory


class Notes:
    """A tracker outside Ludus, named by its import path."""

    def __init__(self, folder):
        self.folder, self.calls = folder, []

    def metrics(self, step, metrics):
        self.calls.append(("metrics", step, dict(metrics)))

    def evaluation(self, step, report):
        self.calls.append(("evaluation", step, report["split"]))

    def event(self, kind, fields):
        self.calls.append(("event", kind, fields["steps"]))

    def close(self):
        self.calls.append(("close",))


class Broken(Notes):
    def metrics(self, step, metrics):
        raise RuntimeError("no route to the tracking server")


def test_a_tracker_named_by_its_import_path_gets_metrics_evaluations_events_and_the_end(config):
    folder = RunFolder.create(config)
    tracker = make_tracker(f"{__name__}:Notes", folder)
    with Recorder(folder, trajectories=False, listeners=[tracker]) as recorder:
        recorder.event("started", steps=5)
        recorder.metrics(1, {"optimizer/loss": 0.5})
        recorder.trajectory(make_trajectory(), step=1, group_id="g")
        recorder.evaluation(1, {"split": "test"})
    assert tracker.tracker.folder is folder
    assert tracker.tracker.calls == [
        ("event", "started", 5),
        ("metrics", 1, {"optimizer/loss": 0.5}),
        ("evaluation", 1, "test"),
        ("close",),
    ]


def test_a_tracker_that_fails_is_reported_once_and_never_ends_the_run(config):
    folder = RunFolder.create(config)
    with Recorder(folder, trajectories=False, listeners=[make_tracker(f"{__name__}:Broken", folder)]) as recorder:
        for step in (1, 2, 3):
            recorder.metrics(step, {"optimizer/loss": 0.5})
    assert [line["step"] for line in folder.metrics()] == [1, 2, 3]
    (event,) = folder.events()
    assert event["kind"] == "listener_failed"
    assert event["text"].startswith(f"tracker '{__name__}:Broken' failed at 'metrics': RuntimeError: no route to the")


def test_a_run_has_the_trackers_of_its_file(config):
    folder = RunFolder.create(config)
    assert [tracker.name for tracker in trackers_of(config.store, folder)] == ["tensorboard"]
    assert trackers_of(config.store.model_copy(update={"tensorboard": False}), folder) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tensorbord", r"'tensorbord', which is unknown.*mean 'tensorboard'.*Known: tensorboard.*module:name"),
        ("no_such_module:Tracker", "cannot be imported: ModuleNotFoundError: .*no_such_module"),
        ("json:Tracker", "'json:Tracker': there is no 'Tracker' in it"),
    ],
)
def test_a_name_that_is_no_tracker_says_what_is_expected(config, name, message):
    with pytest.raises(ConfigError, match=message):
        make_tracker(name, RunFolder.create(config))
