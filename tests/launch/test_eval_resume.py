"""`ludus eval` with models that speak in text alone, and evaluations that were ended half way: nothing finished is played again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ludus.config import dump_config, parse_config
from ludus.errors import ConfigError, EngineFailed, EngineLost
from ludus.launch.evaluate import evaluate_model
from ludus.store.run_folder import RunFolder
from tests.launch.chat_stub import SUCCESSOR, ChatStub, guesses, knows_even

ROOT = Path(__file__).parents[2]
EVEN = {f"successor/test/{index}" for index in (0, 2, 4, 6)}


def make_config(folder, url, **sections):
    data = {
        "name": "e",
        "engine": {"kind": "chat", "url": url},
        "environments": SUCCESSOR,
        "store": {"folder": str(folder)},
        "evaluation": {"num_tasks": 8},
    }
    for name, section in sections.items():
        data[name] = section if name in ("environments", "name") else {**data.get(name, {}), **section}
    return parse_config(data)


def evaluate(config):
    return asyncio.run(evaluate_model(config))


def test_a_model_that_speaks_in_text_is_evaluated_by_environment_and_category(tmp_path):
    with ChatStub(knows_even) as stub:
        config = make_config(tmp_path, stub.url, evaluation={"attempts": 2})
        report = evaluate(config)
    (row,) = report["environments"]
    assert (row["success"], row["num_tasks"], row["num_trajectories"]) == (0.5, 8, 16)
    assert (row["turns"], row["tokens"], row["pass_at_k"]) == (1.0, 3.0, {"2": 0.5})
    assert row["pass_at_k_low"]["2"] < 0.5 < row["pass_at_k_high"]["2"]
    assert [(each["category"], each["success"]) for each in report["categories"]] == [("even", 1.0), ("odd", 0.0)]
    stored = [each.trajectory for each in RunFolder(config.folder).read_trajectories()]
    assert {each.task.id for each in stored if each.success} == EVEN
    assert all(each.sequences == () for each in stored), "text can never be trained on"


def test_the_report_is_json_markdown_and_a_plot_in_the_run_folder(tmp_path):
    with ChatStub(knows_even) as stub:
        config = make_config(tmp_path, stub.url)
        evaluate(config)
    saved = json.loads((config.folder / "evaluation.json").read_text())
    assert (saved["model"], saved["words"], saved["split"]) == ("stub", "text", "test")
    assert saved["environments"][0]["stops"] == {"done": 8}
    page = (config.folder / "evaluation.md").read_text()
    assert "| successor | 50.0% [21.5%, 78.5%] |" in page
    assert "8 (8 tasks)" in page
    assert "successor: even" in page
    assert (config.folder / "plots" / "evaluation.png").stat().st_size > 1000


def test_calls_go_out_and_results_come_back_over_the_chat_protocol(tmp_path):
    with ChatStub(guesses) as stub:
        report = evaluate(make_config(tmp_path, stub.url, environments={"guess": {}}, evaluation={"num_tasks": 4}))
    assert report["environments"][0]["success"] == 1.0
    longest = max(stub.bodies, key=lambda body: len(body["messages"]))["messages"]
    assert [message["role"] for message in longest[:4]] == ["system", "user", "assistant", "tool"]
    assert longest[3]["tool_call_id"] == longest[2]["tool_calls"][0]["id"]


def test_an_evaluation_killed_half_way_goes_on_and_plays_nothing_twice(tmp_path):
    with ChatStub(knows_even, answers=6) as stub:  # one is the probe
        config = make_config(tmp_path, stub.url)
        run_file = tmp_path / "run.toml"
        run_file.write_text(dump_config(config))
        entry = "from ludus.cli.main import main; main()"
        command = [sys.executable, "-c", entry, "eval", str(run_file)]
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        assert stub.full.wait(90), process.communicate()
        recorded = RunFolder(config.folder)
        # the five that were answered are on disk, and the other three have asked
        while len(list(recorded.read_trajectories(report=lambda _: None))) < 5 or len(stub.sessions) < 8:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        stub.released.set()
        before = {each.trajectory.id for each in recorded.read_trajectories(report=lambda _: None)}
        assert len(before) == 5
        stub.answers = None
        stub.bodies.clear()
        report = evaluate(config)
        assert report["environments"][0]["num_trajectories"] == 8
        assert report["environments"][0]["success"] == 0.5
        assert len(stub.sessions) == 3
        assert before.isdisjoint(stub.sessions)
        stub.bodies.clear()
        assert evaluate(config) == report, "a finished one is only read"
        assert stub.sessions == []
    assert len(RunFolder(config.folder).evaluations()) == 1


def test_more_attempts_are_added_to_those_that_are_there(tmp_path):
    with ChatStub(knows_even) as stub:
        evaluate(make_config(tmp_path, stub.url))
        stub.bodies.clear()
        report = evaluate(make_config(tmp_path, stub.url, evaluation={"attempts": 3}))
        assert len(stub.sessions) == 16
    assert report["environments"][0]["num_trajectories"] == 24


def test_an_endpoint_that_goes_away_stops_the_evaluation_and_it_goes_on_later(tmp_path, monkeypatch):
    monkeypatch.setattr("ludus.engines.http.BACKOFF_S", 0.001)
    with ChatStub(knows_even, answers=5, status=503) as stub:
        config = make_config(tmp_path, stub.url, evaluation={"attempts": 4})
        with pytest.raises(EngineLost, match=r"8 sessions in a row lost their model[\s\S]*run the same command again"):
            evaluate(config)
        stub.answers = None
        report = evaluate(config)
    assert report["environments"][0]["num_trajectories"] == 32
    assert report["environments"][0]["num_unscored"] == 0, "what the world ended is played again"


def test_what_a_server_refuses_is_unscored_and_told(tmp_path):
    with ChatStub(knows_even, answers=3, status=400) as stub:
        config = make_config(tmp_path, stub.url)
        report = evaluate(config)
    assert report["environments"][0]["num_unscored"] == 6
    assert "status 400" in (config.folder / "evaluation.md").read_text()


def test_another_evaluation_and_another_kind_of_run_are_never_continued(tmp_path):
    with ChatStub(knows_even) as stub:
        config = make_config(tmp_path, stub.url)
        evaluate(config)
        with pytest.raises(ConfigError, match=r"evaluation.temperature is 1.0 there and 0.0 here.*--name"):
            evaluate(make_config(tmp_path, stub.url, evaluation={"temperature": 0.0}))
        trained = make_config(tmp_path, stub.url, name="trained")
        RunFolder.create(trained).close()
        with pytest.raises(ConfigError, match="already holds a run"):
            evaluate(trained)


def test_an_endpoint_that_is_down_or_knows_no_such_model_is_told_at_the_start_and_the_name_stays_free(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("ludus.engines.http.BACKOFF_S", 0.001)
    config = make_config(tmp_path, "http://127.0.0.1:9/v1")
    with pytest.raises(EngineLost, match="is the server up"):
        evaluate(config)
    with ChatStub(knows_even, answers=0, status=404) as stub, pytest.raises(EngineFailed, match="status 404"):
        evaluate(make_config(tmp_path, stub.url, engine={"model": "no-such"}))
    assert not (config.folder / "config.toml").exists()


def test_an_environment_without_the_split_is_named_with_those_it_has(tmp_path):
    with pytest.raises(ConfigError, match=r"'successor' has no tasks in its dev split.*Splits with tasks: train, test"):
        evaluate(make_config(tmp_path, "http://127.0.0.1:9/v1", evaluation={"split": "dev"}))
