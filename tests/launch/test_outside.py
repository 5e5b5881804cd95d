"""Training with a model behind an endpoint among the speakers: our own `ludus serve engine`, a process on loopback."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ludus.config import load_config, parse_config
from ludus.errors import ConfigError, EngineLost
from ludus.launch import train as local
from ludus.models.loading.load import load_model
from ludus.models.loading.tiny import make_tiny
from ludus.store.run_folder import RunFolder
from tests.e2e.runs import make_config, run
from tests.launch.chat_stub import ChatStub, guesses
from tests.trainer.examples import make_trainer

TOLERANCE = 1e-3


@pytest.fixture(autouse=True)
def _without_plots(monkeypatch):
    monkeypatch.setattr(local, "write_report", lambda folder: folder.report_file)


def config_of(folder, model, *, url, kind, chance=0.5, **sections):
    outside = {"friend": {"url": url, "kind": kind, "chance": chance}}
    foreign = {"off_policy": "mask"} if kind == "chat" else {}
    return make_config(
        folder,
        model,
        **{"cross_policy": {"outside": outside}, "algorithm": foreign, "engine": {"deterministic": True}, **sections},
    )


def turns_of(folder):
    return [
        (turn, sequence)
        for stored in folder.read_trajectories()
        for sequence in stored.trajectory.sequences
        for turn in stored.trajectory.turns
    ]


def test_words_of_an_endpoint_are_in_the_sessions_masked_and_the_run_learns_from_the_rest(
    engine_url, small_model, tmp_path
):
    folder = run(config_of(tmp_path, small_model, url=engine_url, kind="chat", evaluation={"every": 3}))
    spoken = {"current": 0, "friend": 0, "evaluation": 0}
    for turn, sequence in turns_of(folder):
        own = sequence.sampled & (sequence.turns == turn.index)
        spoken[turn.policy] += int(own.any())
        assert np.isnan(sequence.logprobs[own]).all() if turn.policy == "friend" else True
        assert turn.policy != "current" or np.isfinite(sequence.logprobs[own]).all()
    assert min(spoken.values()) > 0
    evaluated = {t.policy for s in folder.read_trajectories() if s.split != "train" for t in s.trajectory.turns}
    assert evaluated == {"evaluation"}
    lines = folder.metrics()
    assert 0 < np.mean([line["tokens/off_policy"] for line in lines]) < 1
    for line in lines:
        sampled = round(line["tokens/generated"] * (1 - line["tokens/off_policy"]))
        assert line["optimizer/sampled_tokens"] == sampled, "the friend's tokens are in no loss"
        assert np.isfinite(line["train/entropy/guess"])
    before, after = (load_file(place / "model.safetensors") for place in (small_model, folder.export))
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_tokens_of_an_endpoint_are_trained_with_its_own_logprobs_as_the_behaviour_policy(
    engine_url, small_model, tmp_path
):
    """The endpoint keeps the first weights, so its logprobs are theirs, however far the policy has moved."""
    folder = run(config_of(tmp_path, small_model, url=engine_url, kind="server", trainer={"lr": 1e-2}))
    trainer = make_trainer(load_model(small_model, device=torch.device("cpu"), dtype=torch.float32))
    gaps = {"current": [0.0], "friend": [0.0]}
    for turn, sequence in turns_of(folder):
        own = sequence.sampled & (sequence.turns == turn.index)
        first = np.array([0.0, *trainer.logprobs(sequence.ids)])
        gaps[turn.policy].append(np.abs(first - sequence.logprobs)[own].max(initial=0))
    assert max(gaps["friend"]) < TOLERANCE < max(gaps["current"])
    assert len(gaps["friend"]) > 4
    for line in folder.metrics():
        assert line["optimizer/sampled_tokens"] == line["tokens/generated"]


def test_an_endpoint_with_another_tokenizer_is_refused_before_the_first_session(engine_url, tmp_path):
    stranger = make_tiny(
        tmp_path / "stranger", corpus=["other words entirely"] * 9, seed=0, vocab_size=400, layers=1, hidden=32
    )
    config = config_of(tmp_path, stranger, url=engine_url, kind="server")
    with pytest.raises(ConfigError, match=r"cross_policy.outside.friend has another tokenizer"):
        run(config)
    assert not RunFolder(config.folder).config_file.exists(), "its name is free for the next try"


def test_an_endpoint_that_is_not_there_is_found_out_at_the_start(small_model, tmp_path):
    config = config_of(tmp_path, small_model, url="http://127.0.0.1:9/v1", kind="chat")
    with pytest.raises(EngineLost, match="is the server up"):
        run(config)


def test_one_that_answers_in_words_alone_may_speak_and_a_dead_one_ends_the_run_by_name(small_model, tmp_path):
    with ChatStub(guesses) as stub:
        folder = run(config_of(tmp_path / "a", small_model, url=stub.url, kind="chat"))
    assert len(folder.metrics()) == 3
    with ChatStub(guesses, answers=1, status=400) as stub, pytest.raises(Exception, match="status 400") as caught:
        run(config_of(tmp_path / "b", small_model, url=stub.url, kind="chat", chance=0.99, rollout={"retries": 0}))
    assert type(caught.value).__name__ == "EngineFailed"


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"cross_policy": {"outside": {"x": {"url": "http://a/v1", "chance": 0.2}}}}, "returns text without logprobs"),
        ({"cross_policy": {"outside": {"x": {"url": "a/v1", "chance": 0.2}}}}, "cross_policy.outside.x.url"),
        ({"cross_policy": {"outside": {"x": {"url": "http://a/v1"}}}}, "cross_policy.outside.x.chance"),
        (
            {"cross_policy": {"outside": {"stale": {"url": "http://a/v1", "chance": 0.2}}}},
            "name of a policy of the run",
        ),
        (
            {
                "cross_policy": {"outside": {"x": {"url": "http://a/v1", "chance": 0.2, "kind": "server"}}},
                "rollout": {"temperature": 0.8},
            },
            "logprobs of temperature 1",
        ),
        (
            {"cross_policy": {"stale": 0.5, "outside": {"x": {"url": "http://a/v1", "chance": 0.5}}}},
            "leave no turn to the current policy",
        ),
    ],
)
def test_outside_speakers_that_cannot_be_honoured_are_refused_with_the_reason(sections, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(sections)


def test_a_preset_takes_an_outside_speaker_by_override():
    keys = ["cross_policy.outside.x.url=http://a/v1", "cross_policy.outside.x.chance=0.1", "algorithm.off_policy=mask"]
    config = load_config("configs/presets/agentrl.toml", keys)
    assert config.cross_policy.others == {"stale": 0.25, "x": 0.1}
