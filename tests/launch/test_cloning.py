"""Warm starts: from solvers, and from the trajectories of another run, also of another model."""

from __future__ import annotations

import asyncio

import pytest

from ludus.errors import ConfigError
from ludus.launch.clone import sequences_of, sft
from ludus.models.loading.load import load_tokenizer
from ludus.rollout.chat import Chat
from ludus.store.run_folder import RunFolder
from tests.e2e.runs import FAKE, make_config
from tests.rollout.families import chat_of

SFT = {"num_trajectories": 24, "steps": 12, "batch_tokens": 512, "lr": 1e-2}


@pytest.fixture(scope="module")
def cloned(blank_model, tmp_path_factory):
    config = make_config(tmp_path_factory.mktemp("cloned"), blank_model, sft=SFT)
    return config, asyncio.run(sft(config))


def test_solvers_are_cloned_and_the_model_is_exported(cloned):
    config, result = cloned
    assert result["success"] == 1.0, "a solver without mistakes always wins"
    assert result["trajectories"] == 24
    folder = RunFolder(config.folder)
    losses = [line["optimizer/loss"] for line in folder.metrics()]
    assert len(losses) == 12
    assert losses[-1] < losses[0] / 2
    assert load_tokenizer(result["export"]) is not None
    assert len(list(folder.read_trajectories())) == 24


def test_the_trajectories_of_a_run_are_cloned_from_its_folder_or_its_name(cloned, blank_model):
    config, _ = cloned
    for number, source in enumerate((str(config.folder), config.name)):
        again = make_config(
            config.folder.parent, blank_model, name=f"again{number}", sft={**SFT, "trajectories": source, "steps": 2}
        )
        assert asyncio.run(sft(again))["trajectories"] == 24


def test_only_trajectories_with_the_wanted_reward_are_cloned(cloned, blank_model, tmp_path):
    config, _ = cloned
    wanted = {**SFT, "trajectories": str(config.folder), "min_reward": 2.0}
    with pytest.raises(
        ConfigError, match=r"of 24 trajectories none was scored with a reward of at least 2 \(sft.min_reward\)"
    ):
        asyncio.run(sft(make_config(tmp_path, blank_model, sft=wanted)))


@pytest.mark.parametrize("family", ["qwen", "qwen3", "llama3"])
def test_a_trajectory_is_cloned_in_another_models_words(cloned, family):
    config, _ = cloned
    chat = chat_of(family)
    for trajectory in (s.trajectory for s in RunFolder(config.folder).read_trajectories()):
        spoken = []
        for sequence in sequences_of(trajectory, chat):
            for turn in sorted(set(sequence.turns[sequence.sampled].tolist())):
                spoken.append(chat.parse(sequence.ids[sequence.sampled & (sequence.turns == turn)].tolist()))
        names = [[(call.name, dict(call.arguments)) for call in action.tool_calls] for action in spoken]
        assert names == [[(c.name, dict(c.arguments)) for c in turn.action.tool_calls] for turn in trajectory.turns]


def test_cloning_a_models_own_trajectory_gives_the_tokens_it_was_made_of(cloned, blank_model):
    config, _ = cloned
    chat = Chat(load_tokenizer(blank_model))
    for trajectory in (s.trajectory for s in RunFolder(config.folder).read_trajectories()):
        ours, theirs = sequences_of(trajectory, chat), trajectory.sequences
        assert [s.ids.tolist() for s in ours] == [s.ids.tolist() for s in theirs]
        assert [s.sampled.tolist() for s in ours] == [s.sampled.tolist() for s in theirs]


def test_where_no_solver_can_play_the_cause_is_told(blank_model, tmp_path):
    broken = {"fake": {"source": FAKE, "options": {"fault": "raise", "fault_in": "act"}}}
    with pytest.raises(ConfigError, match=r"none was scored\. The latest failure was: EnvironmentFailed: .*as ordered"):
        asyncio.run(sft(make_config(tmp_path, blank_model, environments=broken, sft=SFT)))


def test_trajectories_that_are_not_there_do_not_use_up_the_runs_name(blank_model, tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    for source, message in (("nowhere", "is not a run folder"), (str(tmp_path / "empty.jsonl"), "nothing to clone")):
        config = make_config(tmp_path, blank_model, sft={"trajectories": source})
        with pytest.raises(ConfigError, match=message):
            asyncio.run(sft(config))
        assert not config.folder.exists()
