"""`ludus eval`, `ludus eval compare` and `ludus collect` as a user meets them."""

from __future__ import annotations

import json
import tomllib

import pytest

from tests.launch.chat_stub import ChatStub, knows_even

WORLD = "tests.launch.chat_stub:Successor"


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    """In an empty folder, and quick to give an endpoint up."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ludus.engines.http.BACKOFF_S", 0.001)


def knows_all(body):
    return {"content": str(int(body["messages"][-1]["content"].split()[1].rstrip("?")) + 1)}


def test_two_endpoints_are_evaluated_and_compared(ludus, tmp_path):
    for name, say in (("half", knows_even), ("whole", knows_all)):
        with ChatStub(say) as stub:
            code, out, err = ludus(
                "eval", "--model", stub.url, "--environments", WORLD, "--attempts", 2, "--name", name
            )
        assert code == 0, err
        assert "successor" in out
        assert "evaluating: session 16/16" in err
    code, out, _ = ludus("eval", "compare", "half", "whole")
    assert code == 0
    assert "| successor | 50.0% | 100.0% | +50.0% [" in out
    assert "| 4, 0 | 0.125 | 8 | 16 |" in out
    saved = json.loads((tmp_path / "runs" / "half" / "compare-whole.json").read_text())
    assert saved["environments"][0]["num_tasks"] == 8
    assert (tmp_path / "runs" / "half" / "compare-whole.md").exists()
    assert (tmp_path / "runs" / "half" / "compare-whole.png").exists()


def test_attempts_that_ended_unscored_are_told_and_the_same_command_plays_them(ludus):
    with ChatStub(knows_even, answers=6, status=503) as stub:  # one is the probe
        command = ("eval", "--model", stub.url, "--environments", WORLD, "--name", "lost")
        code, out, _ = ludus(*command)
        assert code == 0
        assert "3 attempts ended unscored; the same command plays them again." in out
        stub.answers = None
        code, out, _ = ludus(*command)
    assert code == 0
    assert "unscored;" not in out


def test_flags_go_on_top_of_a_run_file_and_overrides_on_top_of_flags(ludus, tmp_path):
    (tmp_path / "run.toml").write_text(
        "[model]\nname = 'x'\n[environments.guess]\nmax_turns = 3\n[environments.wordle]\n"
    )
    code, out, _ = ludus(
        "eval", "run.toml", "evaluation.num_tasks=9", "--model", "http://h/v1", "--environments", "guess", "--split", "dev", "--dry-run"
    )  # fmt: skip
    assert code == 0
    data = tomllib.loads(out)
    assert data["environments"].keys() == {"guess"}
    assert data["environments"]["guess"]["max_turns"] == 3
    assert (data["engine"]["kind"], data["evaluation"]["split"], data["evaluation"]["num_tasks"]) == ("chat", "dev", 9)
    assert data["name"] == "eval-h"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--model", "http://127.0.0.1:9/v1", "--environments", "guess"],
            "EngineLost: GET http://127.0.0.1:9/v1/models",
        ),
        (["--model", "nope", "--environments", "guess"], "model 'nope' is no folder"),
        (["--model", "runs/nope", "--environments", "guess"], "is not a run folder"),
        (["--model", "http://h/v1", "--environments", "gess"], "Did you mean 'guess'?"),
        (["--model", "http://h/v1", "--environments", "guess", "--split", "tset"], "no tasks in its tset split"),
        (["--model", "http://h/v1", "--environments", "guess", "--attempts", "0"], "evaluation.attempts"),
        (["--model", "http://h/v1"], "the run has no environments"),
        (["--environments", "guess"], "--model names the model to evaluate"),
        (["compare", "a", "b"], "'a' is not a run folder"),
    ],
)
def test_what_is_wrong_is_one_clear_message(ludus, arguments, message):
    code, out, err = ludus("eval", *arguments)
    assert code == 1
    assert message in err
    assert "Traceback" not in out + err


def test_collect_says_what_it_has_and_how_to_go_on(ludus, tmp_path):
    code, out, _ = ludus("collect", "--environments", WORLD, "--num", 4, "--name", "c", "--dataset")
    assert code == 0
    assert "Collected 4 trajectories of solver in text, success 100%" in out
    assert "sft.trajectories=runs/c" in out
    assert len((tmp_path / "runs/c/dataset/train.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "http://h/v1", "--mistakes", "0.5"], "is for solvers"),
        (["--mistakes", "1.5"], "sft.mistakes"),
        (["--num", "0"], "sft.num_trajectories"),
        (["--tokenizer", "x"], "--tokenizer goes with --model"),
    ],
)
def test_collect_refuses_what_makes_no_sense(ludus, arguments, message):
    code, _, err = ludus("collect", "--environments", WORLD, *arguments)
    assert code == 1
    assert message in err
