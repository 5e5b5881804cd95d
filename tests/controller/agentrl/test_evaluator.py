"""AgentRL's own evaluator, playing our environments and those of its own workers through our
controller.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.controller.agentrl.model import model
from tests.controller.agentrl.peers import Plane, until

TASKS = ("double-std", "stream-std", "half", "guess-std")


@pytest.fixture(scope="module")
def results(plane: Plane, has: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    for name in TASKS[:2]:
        has(name)
    folder = tmp_path_factory.mktemp("evaluator")
    with model() as url:
        command = [
            *(
                sys.executable,
                "-m",
                "agentrl.eval",
                *TASKS,
                "--controller",
                plane.api,
                "--base-url",
                url,
                "--model",
                "rule",
            ),
            *("--chat-completions", "--concurrency", "6", "--indices-range", "0-2", "--output", str(folder)),
        ]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL
        )
    assert done.returncode == 0, done.stderr
    found = list(folder.rglob("results.jsonl"))
    assert found, done.stderr + done.stdout
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in found[0].read_text().splitlines():
        row = json.loads(line)
        rows[row["task"]].append(row | {"trace": trace_of(found[0].parent, row)})
    return rows


def trace_of(folder: Path, row: dict[str, Any]) -> str:
    return (folder / row["raw_trace"]).read_text()


@pytest.mark.parametrize("name", TASKS)
def test_it_wins_every_task_that_its_model_can_win(results, name):
    assert [(row["status"], row["metric_reward"]) for row in results[name]] == [("completed", 1.0)] * 3


@pytest.mark.parametrize("name", TASKS[:2], ids=["http", "grpc"])
def test_unknown_fields_survive_between_its_model_and_its_own_worker(results, name):
    for row in results[name]:
        assert '\\"reasoning_content\\": \\"twice is plus itself\\"' in row["trace"].replace("\\\\", "\\"), (
            "to the worker"
        )
        assert '"mood": "sad"' in row["trace"], "and back"


@pytest.mark.parametrize("name", TASKS[:2], ids=["http", "grpc"])
def test_a_win_after_its_malformed_first_answer_is_completed(results, name):
    """Their class says `agent validation failed` to the end, and their trainer would punish
    that."""
    assert {row["status"] for row in results[name]} == {"completed"}
    assert {row["metric_score"] for row in results[name]} == {0.5}


def test_session_ids_are_all_different(results):
    numbers = [row["session_id"] for rows in results.values() for row in rows]
    assert len(set(numbers)) == len(numbers) == 12


def test_nothing_is_left_behind(plane, results):
    assert until(lambda: plane.num_sessions("double-std") == plane.num_sessions("stream-std") == 0, what="no session")
