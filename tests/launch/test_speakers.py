"""Cross-policy sampling end to end: real engine, real trainer, a small model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ludus.config import parse_config
from ludus.engines.embedded import EmbeddedEngine
from ludus.errors import ConfigError
from ludus.launch import train as local
from ludus.models.loading.load import load_model
from ludus.trainer.checkpoint import checkpoint_folder
from ludus.trainer.state import load_weights
from tests.e2e.runs import make_config, run
from tests.trainer.examples import make_trainer

SPEAKERS = {"stale": 0.4, "stale_every": 2, "reference": 0.2}
TOLERANCE = 1e-3


@pytest.fixture(autouse=True)
def _without_plots(monkeypatch):
    monkeypatch.setattr(local, "write_report", lambda folder: folder.report_file)


def config_of(folder, model, **sections):
    return make_config(
        folder,
        model,
        **{
            "cross_policy": SPEAKERS,
            "engine": {"deterministic": True},
            "trainer": {"lr": 1e-2},
            "pipeline": {"steps": 5},
            "store": {"checkpoint_every": 1, "keep_checkpoints": 9},
            **sections,
        },
    )


def test_every_tokens_logprob_is_its_own_speakers_and_evaluation_is_by_the_newest_alone(
    small_model, tmp_path, monkeypatch
):
    spoken = []
    generate = EmbeddedEngine.generate

    async def recording(self, ids, *, sampling, session_id, policy="current"):
        completion = await generate(self, ids, sampling=sampling, session_id=session_id, policy=policy)
        spoken.append((session_id, policy))
        return completion

    monkeypatch.setattr(EmbeddedEngine, "generate", recording)
    config = config_of(tmp_path, small_model, evaluation={"every": 5, "num_tasks": 2})
    folder = run(config)

    trainer = make_trainer(load_model(small_model, device=torch.device("cpu"), dtype=torch.float32))

    def logprobs(ids, version):
        if version:
            place = checkpoint_folder(config.folder, version)
            load_weights(trainer.model, load_file(place / "model.safetensors"), folder=place)
        else:
            load_weights(trainer.model, load_file(small_model / "model.safetensors"), folder=small_model)
        return np.array([0.0, *trainer.logprobs(ids)])

    speakers = set()
    for stored in folder.read_trajectories():
        if stored.split != "train":
            assert {turn.policy for turn in stored.trajectory.turns} == {"evaluation"}
            continue
        for turn in stored.trajectory.turns:
            speakers.add((turn.policy, turn.version))
            for sequence in stored.trajectory.sequences:
                own = sequence.sampled & (sequence.turns == turn.index)
                gap = np.abs(logprobs(sequence.ids, turn.version) - sequence.logprobs)[own]
                assert gap.max(initial=0) < TOLERANCE
    assert {version for policy, version in speakers if policy == "reference"} == {0}
    assert {version for policy, version in speakers if policy == "stale"} == {0, 2, 4}
    assert {version for policy, version in speakers if policy == "current"} == {0, 1, 2, 3, 4}
    assert {policy for session, policy in spoken if session.startswith("eval")} == {"evaluation"}
    foreign = [line["tokens/off_policy"] for line in folder.metrics()]
    assert 0.2 < np.mean(foreign) < 0.9


def test_a_resumed_run_has_the_stale_policy_it_would_have_had(small_model, tmp_path):
    sections = {"cross_policy": {**SPEAKERS, "stale_every": 3}}
    through = run(config_of(tmp_path / "through", small_model, **sections))
    loops = []

    def stop_at_4(kind, fields):
        if kind == "metrics" and fields["step"] == 4:
            loops[0].stop()

    config = config_of(tmp_path / "cut", small_model, **sections)
    run(config, listeners=[stop_at_4], on_loop=loops.append)
    resumed = run(config, resume=True)
    assert words_of(resumed) == words_of(through)
    assert any(turn.policy == "stale" for turn in last_turns(resumed)), "or nothing was shown"
    ours, theirs = (load_file(folder.export / "model.safetensors") for folder in (resumed, through))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_schedule_is_followed_step_by_step_and_by_a_resumed_run_too(small_model, tmp_path):
    """Nobody else at first, then all turns but a few: what was said in each step shows which step's part counted."""
    sections = {
        "cross_policy": {"stale": 0.5, "stale_every": 2, "reference": 0.49, "schedule": [[1, 0.0], [2, 1.0], [3, 0.0]]}
    }
    through = run(config_of(tmp_path / "through", small_model, **sections))
    foreign = [line["tokens/off_policy"] for line in through.metrics()]
    assert [share > 0.8 for share in foreign] == [False, False, True, False, False]
    assert [share == 0 for share in foreign] == [True, True, False, True, True]
    for cut in (2, 3):
        loops = []

        def stop(kind, fields, cut=cut, loops=loops):
            if kind == "metrics" and fields["step"] == cut:
                loops[0].stop()

        config = config_of(tmp_path / f"cut{cut}", small_model, **sections)
        run(config, listeners=[stop], on_loop=loops.append)
        assert words_of(run(config, resume=True)) == words_of(through)


def words_of(folder):
    """What was said in every session, by whom, with which logprobs."""
    return {
        stored.trajectory.id: (
            [(turn.policy, turn.version) for turn in stored.trajectory.turns],
            [(s.ids.tolist(), s.logprobs.tolist()) for s in stored.trajectory.sequences],
        )
        for stored in folder.read_trajectories()
        if stored.step < 5  # what began after the last step was played to its end by luck only
    }


def last_turns(folder):
    return [t for stored in folder.read_trajectories() if stored.step == 4 for t in stored.trajectory.turns]


def test_without_others_nothing_changes(small_model, tmp_path):
    plain = run(config_of(tmp_path / "a", small_model, cross_policy={}, pipeline={"steps": 2}))
    assert {turn.policy for stored in plain.read_trajectories() for turn in stored.trajectory.turns} == {"current"}
    assert [line["tokens/off_policy"] for line in plain.metrics()] == [0, 0]
    assert not (checkpoint_folder(plain.path, 2) / "stale.safetensors").exists()


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"cross_policy": {"stale": 0.6, "reference": 0.5}}, "leave no turn to the current policy"),
        ({"cross_policy": {"stale_every": 3}}, "only with cross_policy.stale"),
        ({"cross_policy": {"draw": "session"}}, "cross_policy.draw counts only with cross_policy.stale"),
        ({"cross_policy": {"schedule": [[0, 1.0]]}}, "cross_policy.schedule counts only with cross_policy.stale"),
        ({"cross_policy": {"stale": 0.2, "schedule": [[5, 1.0], [5, 0.0]]}}, "growing steps"),
        ({"cross_policy": {"stale": 0.2, "schedule": [[0, 1.5]]}}, "factors from 0 to 1"),
        ({"cross_policy": {"stale": 0.2}, "algorithm": {"importance_cap": 0.0}}, "without a correction for the policy"),
        ({"algorithm": {"off_policy": "mask"}}, "only the current policy samples"),
        (
            {
                "cross_policy": {"stale": 0.2},
                "algorithm": {"loss": "reinforce", "ratio_base": "behaviour"},
                "pipeline": {"max_staleness": 0},
            },
            "unclipped importance sampling",
        ),
    ],
)
def test_speakers_that_cannot_be_honoured_are_refused(sections, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(sections)
