"""Every shipped preset is a short run file with its paper, and trains: a few steps of a small model on the world `guess`."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ludus.config import load_config, parse_config
from ludus.launch import train as local
from tests.e2e.runs import GUESS, run

PRESETS = sorted(Path(__file__).parents[2].joinpath("configs", "presets").glob("*.toml"))
EXTRA = {
    "agentrl": {"optimizer/kl_k3", "optimizer/dual_clipped"},
    "scaling-inter": {"optimizer/kl_k3"},
    "reinforce++": {"optimizer/kl_k1"},
    "rloo": {"optimizer/importance"},
    "ppo": {"optimizer/critic_loss", "optimizer/critic_explained"},
    "archer": {"optimizer/archer_q_loss", "optimizer/archer_v_loss", "optimizer/critic_alone"},
    "starpo-s": {"optimizer/critic_loss", "optimizer/entropy"},
    "distill": {"optimizer/teacher_kl"},
    "agent-r1": {"optimizer/critic_loss"},
}
"""Metrics that only this preset's pieces write: were one of them ignored, its metric would be missing."""


@pytest.fixture(autouse=True)
def _without_plots(monkeypatch):
    monkeypatch.setattr(local, "write_report", lambda folder: folder.report_file)


def small(preset, folder, model, *, teacher):
    """The preset's learning on a smaller problem."""
    data = tomllib.loads(preset.read_text())
    data["model"] = {"name": str(model), "device": "cpu"}
    data["environments"] = {"guess": {"options": GUESS}}
    data["rollout"] |= {"group_size": 4, "max_turn_tokens": 6, "max_tokens": 256}
    data["pipeline"] |= {"steps": 3, "groups_per_step": 4}
    if "teacher" in data:
        data["teacher"]["model"] = str(teacher)
    if "critic" in data:
        data["critic"]["steps"] = 2
    if "warmup" in data.get("critic", {}):
        data["critic"]["warmup"] = 1
    data["store"] = {"folder": str(folder), "tensorboard": False, "checkpoint_every": 0, "trajectories": False}
    for horizon in data.get("horizons", {}).values():
        horizon |= {"turns": [1, 2], "every": 1}
    return parse_config(data)


def test_there_are_presets():
    assert len(PRESETS) >= 11


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_a_preset_is_at_most_40_lines_names_its_paper_and_what_differs(preset):
    text = preset.read_text()
    assert len(text.splitlines()) <= 40
    assert re.search(r"\(.*\b\d{4}\.\d{5}\)", text.splitlines()[0])
    assert "# Differs:" in text
    assert load_config(preset).name == preset.stem


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore:algorithm")
def test_a_preset_trains(preset, small_model, blank_model, tmp_path):
    folder = run(small(preset, tmp_path, small_model, teacher=blank_model))
    lines = folder.metrics()
    assert [line["step"] for line in lines] == [1, 2, 3]
    moved = [line for line in lines if "optimizer/critic_alone" not in line]
    assert len(moved) >= 2
    assert all(math.isfinite(line["optimizer/loss"]) and line["optimizer/grad_norm"] > 0 for line in moved)
    assert EXTRA.get(preset.stem, set()) <= lines[0].keys()
    before, after = (load_file(place / "model.safetensors") for place in (Path(small_model), folder.export))
    assert any(not torch.equal(before[name], after[name]) for name in before)
