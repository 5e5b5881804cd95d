import pytest

from ludus.errors import StoreFailed
from ludus.store import recorder as recorder_module
from ludus.store.recorder import ListenerFailed, Recorder
from ludus.store.run_folder import RunFolder
from tests.store.examples import make_trajectory


def open_recorder(config, **options):
    return Recorder(RunFolder.create(config), **({"trajectories": True} | options))


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


def test_a_listener_that_the_run_can_do_without_is_reported_once_and_the_run_continues(config):
    heard = []

    def broken(kind, fields):
        raise ListenerFailed("gone")

    with open_recorder(config, listeners=[broken, lambda kind, fields: heard.append(kind)]) as recorder:
        recorder.metrics(1, {"staleness/max": 1})
        recorder.metrics(2, {"staleness/max": 1})
    assert heard == ["metrics", "listener_failed", "metrics", "closed"]
    reader = RunFolder.open(config.folder)
    assert [line["step"] for line in reader.metrics()] == [1, 2]
    (event,) = reader.events()
    assert event["text"] == "gone. The run continues without it."


def test_a_listener_that_fails_at_the_end_is_reported_too(config):
    def broken(kind, fields):
        if kind == "closed":
            raise ListenerFailed("gone")

    with open_recorder(config, listeners=[broken]):
        pass
    assert [event["kind"] for event in RunFolder.open(config.folder).events()] == ["listener_failed"]
