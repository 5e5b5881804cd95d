"""The benchmark of the worlds measures what its line says. How fast a world is, is no test's business."""

import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    sys.modules.pop("worlds", None)
    import worlds

    return worlds


def test_a_world_is_played_here_and_through_a_worker_and_becomes_one_line(worlds, monkeypatch):
    monkeypatch.setattr(worlds, "LIGHT", 3)
    line = worlds.measure("guess", tasks=4, seconds=0.02)
    assert json.loads(json.dumps(line)) == line
    assert (line["case"], line["tasks"], line["solver"], line["sessions"]) == ("worlds/guess", 4, 4, 3)
    assert line["ratio"] == pytest.approx(line["workers_turns_per_s"] / line["turns_per_s"], rel=0.05)
    assert all(line[figure] > 0 for figure in ("session_start_ms", "world_start_s"))
    assert "target" not in line


def test_memory_is_that_of_a_process_and_all_below_it(worlds):
    assert os.getpid() in worlds._tree(os.getppid())
    assert worlds._kib(os.getppid()) > worlds._kib(os.getpid()) > 1024


def test_three_digits_are_kept(worlds):
    assert [worlds._short(value) for value in (45678.9, 0.012345, 99.95, 7)] == [45700, 0.0123, 100, 7.0]
