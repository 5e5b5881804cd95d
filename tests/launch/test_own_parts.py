"""An engine and a curriculum from a module outside of the package, named by their import path."""

from __future__ import annotations

import sys

import pytest

from tests.e2e.runs import make_config, run

MODULE = """
from ludus.config import EngineConfig
from ludus.launch.engines import make_engine as make_built_in

made = []


def make_engine(config, *, model_folder, trains):
    engine = make_built_in(
        config.model_copy(update={"engine": EngineConfig()}), model_folder=model_folder, trains=trains
    )
    made.append((engine, trains))
    return engine


class Reversed:
    def __init__(self, tasks, *, config, seed):
        self.tasks, self.learnt = list(tasks)[::-1], 0

    def choose(self, *, count, index):
        return self.tasks[count % len(self.tasks)]

    def note(self, task, *, index):
        pass

    def learn(self, group, *, index):
        self.learnt += 1

    def train(self, groups, batch):
        pass

    def state(self):
        return {"learnt": self.learnt}

    def restore(self, state):
        self.learnt = state["learnt"]
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_parts.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_parts", None)


def test_a_run_trains_with_an_engine_and_a_curriculum_of_its_own(own, small_model, tmp_path):
    sections = {"engine": {"kind": "own_parts:make_engine"}, "curriculum": {"tasks": "own_parts:Reversed"}}
    folder = run(make_config(tmp_path, small_model, **sections))
    import own_parts

    ((engine, trains),) = own_parts.made
    assert trains
    assert engine.stats().loads > 3
    assert len(folder.metrics()) == 3
    drawn = {stored.trajectory.task.id for stored in folder.read_trajectories()}
    plain = run(make_config(tmp_path, small_model, name="plain"))
    assert drawn != {stored.trajectory.task.id for stored in plain.read_trajectories()}
