"""A model that clones its own successes plays better than it did, and only successes are cloned."""

from __future__ import annotations

import asyncio

import pytest

from ludus.errors import ConfigError
from ludus.launch import evolve as evolving
from ludus.launch.evolve import evolve
from ludus.store.run_folder import RunFolder
from tests.e2e.runs import make_config

SFT = {"steps": 30, "batch_tokens": 1024, "lr": 3e-3}


def test_rounds_of_cloning_its_own_successes_make_a_model_succeed_more_often(small_model, tmp_path, monkeypatch):
    cloned = []
    clone = evolving.clone

    def counting(trainer, sequences, **settings):
        cloned.append(len(sequences))
        return clone(trainer, sequences, **settings)

    monkeypatch.setattr(evolving, "clone", counting)
    config = make_config(tmp_path, small_model, sft=SFT, evolve={"rounds": 3, "num_trajectories": 96})
    result = asyncio.run(evolve(config))
    folder = RunFolder(config.folder)
    rounds = [event for event in folder.events() if event["kind"] == "round"]
    kept = [event["kept"] for event in rounds]
    assert cloned == [kept[0], kept[0] + kept[1], sum(kept)], "each round clones all that was ever kept"
    won = [stored.trajectory.reward >= 1 for stored in folder.read_trajectories()]
    assert (len(won), sum(won)) == (3 * 96, sum(kept)), "successes and nothing else"
    assert result["success"][-1] > result["success"][0] + 0.1


def test_without_a_success_the_next_move_is_told(small_model, tmp_path):
    config = make_config(tmp_path, small_model, sft=SFT, evolve={"num_trajectories": 4, "min_reward": 2.0})
    with pytest.raises(ConfigError, match=r"of 4 trajectories none had a reward of at least 2 .*ludus sft"):
        asyncio.run(evolve(config))


def test_a_server_cannot_evolve_and_leaves_no_run_folder(small_model, tmp_path):
    config = make_config(tmp_path, small_model, engine={"kind": "server", "url": "http://127.0.0.1:9/v1"})
    with pytest.raises(ConfigError, match=r"engine\.kind is 'server'.*needs 'embedded'"):
        asyncio.run(evolve(config))
    assert not config.folder.exists()
