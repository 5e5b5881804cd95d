"""`ludus train`, `sft` and `eval` as a user meets them: clear lines instead of tracebacks, and runs that survive being stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from ludus.config import dump_config, load_config, parse_config
from ludus.store.run_folder import RunFolder
from tests.e2e.runs import make_config

PATIENCE_S = 300.0


@pytest.fixture
def run_file(small_model, tmp_path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(dump_config(make_config(tmp_path / "runs", small_model)))
    return path


def test_a_dry_run_prints_a_run_that_reads_back(ludus, run_file, tmp_path):
    code, out, _ = ludus("train", run_file, "trainer.lr=0.5", "--dry-run")
    assert code == 0
    assert parse_config(tomllib.loads(out)) == load_config(run_file, ["trainer.lr=0.5"])
    assert not (tmp_path / "runs").exists(), "and leaves nothing behind"


def test_overrides_alone_are_a_run(ludus):
    code, out, _ = ludus("train", "environments.guess.weight=2", "pipeline.steps=7", "--dry-run")
    assert code == 0
    assert tomllib.loads(out)["pipeline"]["steps"] == 7


@pytest.mark.parametrize("command", ["train", "sft", "eval"])
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.lrr=1", "unknown key 'trainer.lrr'. Did you mean 'lr'?"),
        ("pipeline.steps=many", "pipeline.steps"),
        ("model.name=smolm2", "model 'smolm2' is no folder"),
        ("environments.gess.weight=1", "gess"),
        ("environments.guess.options.numbrs=3", "numbrs"),
        ("evaluation", "not of the form key=value"),
    ],
)
def test_what_is_wrong_is_one_clear_line_and_no_traceback(ludus, run_file, command, override, message):
    code, out, err = ludus(command, run_file, override)
    assert code == 1
    assert err.startswith("ludus: ConfigError: ")
    assert message in err
    assert "Traceback" not in out + err


@pytest.mark.parametrize("content", [None, "name = [", "nam = 'x'"])
def test_a_wrong_run_file_is_one_clear_line(ludus, tmp_path, content):
    path = tmp_path / "wrong.toml"
    if content is not None:
        path.write_text(content)
    code, _, err = ludus("train", path)
    assert code == 1
    assert err.startswith("ludus: ConfigError: ")
    assert len(err.splitlines()) == 1


def test_a_mistake_does_not_use_up_the_name(ludus, run_file):
    assert ludus("train", run_file, "model.name=smolm2")[0] == 1
    assert ludus("train", run_file, "pipeline.steps=1")[0] == 0


def test_train_says_where_everything_is_and_refuses_to_overwrite(ludus, run_file, tmp_path):
    code, out, _ = ludus("train", run_file, "pipeline.steps=1", "evaluation.every=1")
    assert code == 0
    assert "Success on held-out tasks" in out
    assert all(word in out for word in ("Model:", "Report:", "ludus trajectories"))
    code, _, err = ludus("train", run_file, "pipeline.steps=1")
    assert code == 1
    assert all(word in err for word in ("already holds a run", "name=", "--resume"))


def test_sft_says_how_to_go_on(ludus, run_file):
    code, out, _ = ludus("sft", run_file, "sft.steps=2", "sft.num_trajectories=8", "name=warm")
    assert code == 0
    assert "Cloned 8 trajectories" in out
    assert "ludus train ... model.name=" in out


def test_eval_prints_success_with_counts_and_intervals(ludus, run_file):
    code, out, _ = ludus("eval", run_file, "name=eval")
    assert code == 0
    assert "guess" in out
    assert "95 %" in out


# ------------------------------------------------------------------------------------------------ stopped from outside


@pytest.fixture
def started():
    """`ludus train` in a process of its own, after its first `steps` steps; gone when the test is."""
    processes: list[subprocess.Popen] = []

    def start(run_file: Path, folder: RunFolder, *, steps: int) -> subprocess.Popen:
        entry = "from ludus.cli.main import main; main()"
        command = [sys.executable, "-c", entry, "train", str(run_file), "pipeline.steps=1000000"]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        processes.append(process)
        give_up = time.monotonic() + PATIENCE_S
        while len(folder.metrics(report=lambda _: None)) < steps:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < give_up
            time.sleep(0.05)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_promise_7_ctrl_c_saves_says_how_to_resume_and_the_resumed_run_finishes(ludus, started, run_file, tmp_path):
    folder = RunFolder(tmp_path / "runs" / "r")
    process = started(run_file, folder, steps=2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert "Stopping after this step" in err
    assert f"Resume:  ludus train {run_file} pipeline.steps=1000000 --resume" in out
    assert "Traceback" not in err
    reached = folder.metrics()[-1]["step"]
    code, out, err = ludus("train", run_file, f"pipeline.steps={reached + 2}", "--resume")
    assert code == 0, err
    assert [line["step"] for line in folder.metrics()] == list(range(1, reached + 3))


def test_a_second_signal_stops_at_once_and_what_was_finished_can_be_read(started, run_file, tmp_path):
    folder = RunFolder(tmp_path / "runs" / "r")
    process = started(run_file, folder, steps=1)
    process.send_signal(signal.SIGTERM)
    heard = next(line for line in process.stderr if "Stopping after this step" in line)  # else both may come as one
    assert process.poll() is None, heard
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert list(folder.read_trajectories(report=lambda _: None))


def test_promise_7_after_kill_9_finished_trajectories_are_there_and_the_run_resumes(ludus, started, run_file, tmp_path):
    run_file.write_text(run_file.read_text().replace("checkpoint_every = 0", "checkpoint_every = 2"))
    folder = RunFolder(tmp_path / "runs" / "r")
    process = started(run_file, folder, steps=5)
    process.kill()
    process.communicate()
    problems: list[str] = []
    before = {stored.trajectory.id for stored in folder.read_trajectories(report=problems.append)}
    trained = folder.metrics(report=problems.append)[-1]["step"]
    assert len(before) >= trained * 4, "every trajectory that was trained is on disk"
    assert len(problems) <= 2, "at most a torn last line per file"
    code, _, err = ludus("train", run_file, f"pipeline.steps={trained + 2}", "--resume")
    assert code == 0, err
    assert [line["step"] for line in folder.metrics()] == list(range(1, trained + 3))
    assert before <= {record["id"] for record in folder.records(report=problems.append)}


def test_a_model_and_environments_are_all_that_a_run_needs_and_a_dry_run_tells_what_was_chosen(ludus):
    code, out, _ = ludus("train", "--model", "tiny", "--environments", "guess,frozen_lake", "--dry-run")
    assert code == 0
    assert list(tomllib.loads(out)["environments"]) == ["guess", "frozen_lake"]
    assert "# On this machine:" in out
    assert "engine.max_running" in out.splitlines()[-1]


def test_an_environment_may_be_a_file_and_a_model_a_run_here_too(ludus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    climb = Path(__file__).parents[2] / "examples" / "climb.py"
    code, out, _ = ludus("train", "--environments", climb, "--dry-run")
    assert code == 0
    assert tomllib.loads(out)["environments"]["climb"]["source"] == str(climb)
    code, _, err = ludus("train", "--model", "runs/nope", "--environments", "guess", "--dry-run")
    assert code == 1
    assert "'runs/nope' is not a run folder" in err, "and not a hub name that is asked for over the network"


def test_a_model_that_is_not_here_ends_a_dry_run_after_its_print(ludus):
    code, out, err = ludus("train", "environments.guess.weight=1", "model.name=/not/here", "--dry-run")
    assert code == 1
    assert tomllib.loads(out)["model"]["name"] == "/not/here"
    assert "model '/not/here' is no folder" in err


def test_a_device_that_is_not_here_ends_a_dry_run(ludus):
    code, _, err = ludus("train", "environments.guess.weight=1", 'devices=["cuda:99"]', "--dry-run")
    assert code == 1
    assert "devices[0] is 'cuda:99', which is not here" in err
