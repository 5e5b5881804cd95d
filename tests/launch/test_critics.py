"""Runs with a critic: interrupted and resumed they equal runs that never stopped, critic and all."""

from __future__ import annotations

import asyncio

import pytest
import torch
from safetensors.torch import load_file

from ludus.launch import train as local
from ludus.launch.train import train
from ludus.trainer.checkpoint import latest_checkpoint, load_checkpoint
from tests.e2e.runs import make_config, run
from tests.e2e.test_promises import stop_after

CRITICS = {
    "gae": {"kind": "model", "lr": 1e-2, "steps": 2, "clip": 0.2},
    "turn_gae": {"kind": "head", "lr": 1e-2},
    "archer": {"kind": "archer", "lr": 1e-2, "steps": 3, "batch": 4, "warmup": 1, "baseline": True},
}
REPLAY = {"gae": {"tasks": "replay", "score": "positive_value_loss"}}
"""A curriculum that only a critic can score."""


@pytest.fixture(autouse=True)
def _without_plots(monkeypatch):
    monkeypatch.setattr(local, "write_report", lambda folder: folder.report_file)


def final(folder):
    checkpoint = latest_checkpoint(folder.path)
    files = [
        file for file in sorted(checkpoint.glob("*.safetensors")) if file.stem != "rng"
    ]  # this process's, not the run's
    return {file.name: load_file(file) for file in files}


@pytest.mark.parametrize("advantage", CRITICS)
def test_a_resumed_run_equals_one_that_never_stopped(advantage, small_model, tmp_path):
    settings = {
        "algorithm": {"advantage": advantage},
        "critic": CRITICS[advantage],
        "curriculum": REPLAY.get(advantage, {}),
        "trainer": {"lr": 1e-2},
        "engine": {"deterministic": True},
    }
    through = run(make_config(tmp_path / "whole", small_model, **settings))
    whole = final(through)
    config = make_config(tmp_path / "halves", small_model, **settings)
    listener, on_loop = stop_after("metrics", 2)
    asyncio.run(train(config, listeners=[listener], on_loop=on_loop))
    resumed = run(config, resume=True)
    halves = final(resumed)
    levels = [load_checkpoint(latest_checkpoint(f.path)).state["loop"]["feed"]["levels"] for f in (through, resumed)]
    assert levels[0] == levels[1]
    if advantage in REPLAY:
        assert any(score > 0 for score, _ in levels[0]["guess"]["levels"].values())
    assert whole.keys() == halves.keys()
    assert any(name.startswith(("critic", "archer")) for name in whole)
    for file, tensors in whole.items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, halves[file][name]), f"{file}: {name}"
