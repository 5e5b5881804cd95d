"""Promise: where environments run, and where sessions are played, changes nothing. The quickstart's worlds in workers, and sessions in
processes of their own, give what they give in this process."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from ludus.config import parse_config
from ludus.launch import context as parts
from ludus.launch.clone import sft
from ludus.models.loading.tiny import make_tiny
from ludus.store.run_folder import RunFolder
from ludus.types import Trajectory
from tests.e2e.runs import run

CLOCKS = ("seconds", "generate_s", "act_s")


def quickstart(tmp_path, at: str, **sections: Any):
    """The worlds and options of configs/quickstart.toml, few steps."""
    options = {"frozen_lake": {"holes": 3}, "guess": {"numbers": 8}, "kv_store": {}}
    data: dict[str, Any] = {
        "name": at,
        "model": {"name": "tiny", "device": "cpu"},
        "environments": {name: {"at": at, "options": chosen} for name, chosen in options.items()},
        "sft": {"mistakes": 0.45, "num_trajectories": 150, "steps": 60, "batch_tokens": 1024, "lr": 1e-2},
        "rollout": {"group_size": 4, "max_turn_tokens": 16, "max_tokens": 384},
        "pipeline": {"steps": 2, "groups_per_step": 3, "max_staleness": 0},
        "algorithm": {"filter": "none"},
        "engine": {"deterministic": True},
        "evaluation": {"num_tasks": 2, "every": 2},
        "store": {"folder": str(tmp_path), "tensorboard": False, "checkpoint_every": 0},
    }
    if at == "workers":
        data["workers"] = {"num": 2, "slots": 4}  # fewer slots than sessions: some wait
    return parse_config({**data, **sections})


def said(trajectory: Trajectory) -> Any:
    """All of a trajectory but its clocks, comparable."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(each) for name, each in value.items() if name not in CLOCKS}
        if isinstance(value, list | tuple):
            return [plain(each) for each in value]
        return value.tolist() if isinstance(value, np.ndarray) else value

    return plain(asdict(trajectory))


def trajectories_of(folder: RunFolder) -> dict[str, Any]:
    return {stored.trajectory.id: said(stored.trajectory) for stored in folder.read_trajectories()}


def weights_of(folder: RunFolder) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in load_file(folder.export / "model.safetensors").items()}


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A warm start through the environments' own players, in both places: run folders by place."""
    folders = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "make_tiny", partial(make_tiny, vocab_size=600, layers=2, hidden=64, context=512))
        for at in ("here", "workers"):
            config = quickstart(tmp_path_factory.mktemp(f"warm-{at}"), at)
            asyncio.run(sft(config))
            folders[at] = RunFolder(config.folder)
    return folders


def test_a_warm_start_through_players_in_workers_is_the_one_in_this_process(warm):
    here, there = (trajectories_of(warm[at]) for at in ("here", "workers"))
    assert len(here) == 150
    assert {each["task"]["environment"] for each in here.values()} == {"frozen_lake", "guess", "kv_store"}
    assert here == there
    assert weights_of(warm["here"]) == weights_of(warm["workers"])


def test_training_in_workers_gives_the_trajectories_and_weights_of_training_in_this_process(warm, tmp_path):
    model = {"name": str(warm["here"].export), "device": "cpu"}
    folders = {at: run(quickstart(tmp_path, at, model=model)) for at in ("here", "workers")}
    here, there = (trajectories_of(folders[at]) for at in ("here", "workers"))
    assert len(here) >= 24
    assert sum(len(each["turns"]) for each in here.values()) > len(here), "sessions of one turn would prove little"
    assert here == there
    assert weights_of(folders["here"]) == weights_of(folders["workers"])
    assert weights_of(folders["here"]) != weights_of(warm["here"]), "something was learned"


@pytest.mark.parametrize("at", ["here", "workers"])
def test_sessions_in_processes_of_their_own_are_those_of_this_process(warm, tmp_path, at):
    model = {"name": str(warm["here"].export), "device": "cpu"}
    pipeline = {"steps": 2, "groups_per_step": 3, "max_staleness": 0}
    here = run(quickstart(tmp_path, "here", model=model))
    apart = run(quickstart(tmp_path, at, model=model, name="apart", pipeline={**pipeline, "session_processes": 2}))
    assert trajectories_of(here) == trajectories_of(apart)
    assert weights_of(here) == weights_of(apart)
