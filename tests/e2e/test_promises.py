"""The promises of the design, end to end: real worlds, real engine, real trainer, a small model."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ludus.algorithms import make_algorithm
from ludus.config import dump_config, load_config
from ludus.engines.embedded import EmbeddedEngine
from ludus.errors import ConfigError, EngineFailed
from ludus.launch.context import make_model_context
from ludus.launch.engines import make_engine
from ludus.launch.train import train
from ludus.models.loading.load import load_model, load_tokenizer
from ludus.pipeline.feed import Feed
from ludus.rollout.chat import Chat
from ludus.rollout.sampler import PolicySampler
from ludus.store.run_folder import RunFolder
from ludus.trainer import local as trainer_module
from ludus.trainer.checkpoint import checkpoint_folder, latest_checkpoint
from ludus.trainer.local import LocalTrainer
from ludus.types import Stop
from ludus.weights.memory import MemoryChannel
from tests.e2e.runs import FAKE, make_config, run

EXACT = {"engine": {"deterministic": True}}
"""One sequence per forward pass: no rounding depends on who else is in the batch."""


def weights_of(folder: RunFolder) -> dict[str, torch.Tensor]:
    return load_file(folder.export / "model.safetensors")


def same_bits(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def stop_after(kind: str, count: int):
    """(listener, on_loop) that end a run, like Ctrl-C, when so many of a kind were recorded."""
    loops, heard = [], []

    def listen(what, fields):
        heard.append(what)
        if heard.count(kind) == count:
            loops[0].stop()

    return listen, loops.append


# ------------------------------------------------------------------------------------------------ 1 and 2


@pytest.fixture(scope="module")
def recorded(small_model, tmp_path_factory):
    """A run with staleness 1: its config, its trajectories, and by session what the engine was asked and answered."""
    asked: dict[str, list] = defaultdict(list)
    generate = EmbeddedEngine.generate

    async def recording(self, ids, *, sampling, session_id, policy="current"):
        completion = await generate(self, ids, sampling=sampling, session_id=session_id, policy=policy)
        asked[session_id].append((list(ids), completion))
        return completion

    config = make_config(
        tmp_path_factory.mktemp("recorded"),
        small_model,
        pipeline={"steps": 5, "max_staleness": 1},
        trainer={"lr": 1e-2},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EmbeddedEngine, "generate", recording)
        folder = run(config)
    return config, list(folder.read_trajectories()), asked


def test_promise_1_sampled_ids_are_exactly_what_the_engine_returned(recorded):
    _, stored, asked = recorded
    assert len(stored) >= 20
    assert any(len(s.trajectory.turns) > 1 for s in stored), "one turn alone would prove little"
    for trajectory in (s.trajectory for s in stored):
        pieces = asked[trajectory.id]
        assert len(pieces) == len(trajectory.turns)
        (sequence,) = trajectory.sequences
        last_prompt, last = pieces[-1]
        assert sequence.ids.tolist() == [*last_prompt, *last.ids]
        expected = np.zeros(len(sequence), bool)
        for turn, (prompt, completion) in enumerate(pieces):
            place = slice(len(prompt), len(prompt) + len(completion.ids))
            expected[place] = True
            assert sequence.ids[: place.stop].tolist() == [*prompt, *completion.ids]
            assert sequence.logprobs[place].tolist() == np.float32(completion.logprobs).tolist()
            assert tuple(sequence.versions[place]) == completion.versions
            assert set(sequence.turns[place].tolist()) == {turn}
        assert (sequence.sampled == expected).all(), "the mask is provenance and nothing else"


def test_promise_1_a_turns_tokens_read_as_its_action(recorded):
    config, stored, asked = recorded
    chat = Chat(load_tokenizer(config.model.name))
    calls = 0
    for trajectory in (s.trajectory for s in stored):
        for turn, (_, completion) in zip(trajectory.turns, asked[trajectory.id], strict=True):
            assert chat.parse(completion.ids) == turn.action
            calls += len(turn.action.tool_calls)
    assert calls > 10


def test_promise_1_the_trainer_agrees_with_the_logprobs_that_were_sampled(small_model, tmp_path):
    """At bound 0, where no request is in flight during a load: such a one goes on with the keys and values that it has."""
    store = {"checkpoint_every": 1, "keep_checkpoints": 9}
    config = make_config(tmp_path, small_model, trainer={"lr": 1e-2}, store=store)
    stored = list(run(config).read_trajectories())
    trainer = LocalTrainer(
        load_model(config.model.name, device="cpu"), algorithm_loss=lambda t: None, config=config.trainer
    )
    checked = set()
    for version in range(config.pipeline.steps):
        if version:
            trainer.restore(checkpoint_folder(config.folder, version))
        for sequence in (sequence for s in stored for sequence in s.trajectory.sequences):
            mine = sequence.sampled & (sequence.versions == version)
            if mine.any():
                checked.add(version)
                ours = np.array([0.0, *trainer.logprobs(sequence.ids.tolist())], np.float32)
                assert np.abs(ours - sequence.logprobs)[mine].max() < 1e-4
    assert checked == {0, 1, 2}


def test_promise_2_versions_never_fall_within_a_trajectory_and_never_exceed_the_trainers(recorded):
    _, stored, _ = recorded
    for s in stored:
        for sequence in s.trajectory.sequences:
            versions = sequence.versions[sequence.sampled]
            assert (np.diff(versions) >= 0).all()
            assert versions.min() >= 0
            assert versions.max() <= s.step, "no token claims weights that did not exist"
            assert (sequence.versions[~sequence.sampled] == -1).all()


# ------------------------------------------------------------------------------------------------ 3 and 4


@pytest.mark.parametrize("bound", [0, 2])
def test_promise_3_no_trained_group_is_staler_than_the_bound(small_model, tmp_path, bound):
    folder = run(make_config(tmp_path, small_model, pipeline={"steps": 6, "max_staleness": bound}))
    assert [line["staleness/max"] <= bound for line in folder.metrics()] == [True] * 6


async def synchronous(config, *, folder: Path) -> dict[str, torch.Tensor]:
    """What a plain reader would write: play, batch, step, load, again. One group after the other."""
    context = await make_model_context(config, folder=folder)
    algorithm, channel = make_algorithm(config.algorithm), MemoryChannel()
    trainer = LocalTrainer(
        context.load_model(), algorithm_loss=algorithm.loss, config=config.trainer, temperature=1.0, channel=channel
    )
    engine = make_engine(config, model_folder=context.model_folder, trains=True)
    await engine.load(trainer.publish(), source=channel)
    feed = Feed(await context.tasks("train"), weights={"guess": 1.0}, seed=config.seed, rollout=config.rollout)
    player = context.player(PolicySampler(engine))
    for _ in range(config.pipeline.steps):
        groups = []
        for _ in range(config.pipeline.groups_per_step):
            groups.append(await player.play(feed.draw()))
        trainer.step(algorithm.batch(groups))
        await engine.load(trainer.publish(), source=channel)
    await engine.close()
    await context.client.close()
    return {name: tensor.detach().clone() for name, tensor in trainer.model.state_dict().items()}


def test_promise_4_bound_0_equals_a_synchronous_loop_bit_for_bit(small_model, tmp_path):
    config = make_config(tmp_path, small_model, trainer={"lr": 1e-2}, **EXACT)
    ours = weights_of(run(config))
    theirs = asyncio.run(synchronous(config, folder=tmp_path))
    theirs = {name: tensor for name, tensor in theirs.items() if name in ours}  # the tied head is stored once
    assert same_bits(ours, theirs)
    assert not same_bits(ours, load_file(small_model / "model.safetensors")), "something was learned"


# ------------------------------------------------------------------------------------------------ 5


def altered(tensors):
    return {name: tensor * 1.5 if "layers.1.mlp.up_proj" in name else tensor for name, tensor in tensors.items()}


def missing(tensors):
    return {name: tensor for name, tensor in tensors.items() if "layers.1.mlp" not in name}


@pytest.mark.parametrize("damage", [altered, missing])
def test_promise_5_a_wrong_or_partial_load_stops_the_run(small_model, tmp_path, monkeypatch, damage):
    class Damaging(MemoryChannel):
        def fetch(self, version):
            tensors = super().fetch(version)
            return damage(tensors) if version == 2 else tensors

    monkeypatch.setattr(trainer_module, "MemoryChannel", Damaging)
    config = make_config(tmp_path, small_model, trainer={"lr": 1e-2})
    with pytest.raises(EngineFailed, match=r"probe prompt|layers\.1\.mlp"):
        run(config)
    assert [line["step"] for line in RunFolder(config.folder).metrics()] == [1]


# ------------------------------------------------------------------------------------------------ 6


def test_promise_6_a_faulty_environment_is_counted_by_cause_and_never_rewarded(small_model, tmp_path):
    faults = {
        "raising": {"fault": "raise", "fault_rate": 0.3},
        "lost": {"fault": "nan", "fault_rate": 0.3},
        "hung": {"fault": "hang", "fault_rate": 0.2, "blocking": False},
    }
    environments = {
        name: {"source": FAKE, "options": {"name": name, "turns": 1, "num_tasks": 20, **options}}
        for name, options in faults.items()
    }
    config = make_config(
        tmp_path,
        small_model,
        environments=environments,
        rollout={"group_size": 3, "min_group_size": 1, "turn_timeout_s": 0.3, "max_turn_tokens": 40},
        pipeline={"steps": 6, "groups_per_step": 3, "max_staleness": 1},
    )
    folder = run(config)
    assert [line["step"] for line in folder.metrics()] == list(range(1, 7)), "the run went on"
    counted: dict[str, float] = defaultdict(float)
    for line in folder.metrics():
        for name in line:
            if name.startswith("trajectories/failed/"):
                counted[name] += line[name]
    assert set(counted) == {"trajectories/failed/failed", "trajectories/failed/turn_timeout"}
    failed = [s.trajectory for s in folder.read_trajectories() if not s.trajectory.stop.scored]
    assert len(failed) >= sum(counted.values())
    assert {t.task.environment for t in failed} == set(faults)
    for trajectory in failed:
        border = "TurnTimeout" if trajectory.stop == Stop.TURN_TIMEOUT else "EnvironmentFailed"
        assert trajectory.failure.startswith(f"{border}: ")
        assert trajectory.turns[-1].observation.reward == 0.0


# ------------------------------------------------------------------------------------------------ 7


def test_promise_7_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(small_model, tmp_path):
    settings = {"pipeline": {"steps": 4}, "trainer": {"lr": 1e-2}, **EXACT}
    whole = run(make_config(tmp_path / "whole", small_model, **settings))
    config = make_config(tmp_path / "halves", small_model, **settings)
    listener, on_loop = stop_after("metrics", 2)
    result = asyncio.run(train(config, listeners=[listener], on_loop=on_loop))
    assert (result["finished"], result["version"]) == (False, 2)
    halves = run(config, resume=True)
    assert same_bits(weights_of(whole), weights_of(halves))
    for ours, theirs in zip(whole.metrics(), halves.metrics(), strict=True):
        assert ours["optimizer/loss"] == theirs["optimizer/loss"]
    tokens = [
        {s.trajectory.id: s.trajectory.sequences[0].ids.tolist() for s in folder.read_trajectories()}
        for folder in (whole, halves)
    ]
    assert tokens[0] == tokens[1]


def test_promise_7_a_resumed_run_trains_the_groups_that_were_ready(small_model, tmp_path):
    pipeline = {"steps": 2, "groups_per_step": 4, "max_staleness": 1}
    config = make_config(tmp_path, small_model, pipeline=pipeline)
    loops = []

    def stop_when_one_is_ready(kind, fields):  # four make a step
        if kind == "trajectory" and loops[0].buffer.ready:
            loops[0].stop()

    asyncio.run(train(config, listeners=[stop_when_one_is_ready], on_loop=loops.append))
    folder = RunFolder(config.folder)
    state = json.loads((latest_checkpoint(folder.path) / "state.json").read_text())["loop"]
    ready = {entry["group"]["id"] for entry in state["ready"]}
    playing = {f"g{draw['index']:06d}" for draw in state["feed"]["again"]}
    assert ready
    assert playing
    before = len(folder.trajectory_files())
    run(config, resume=True)
    later = [json.loads(line) for path in folder.trajectory_files()[before:] for line in path.open()]
    played = {record["group"] for record in later}
    assert not played & ready, "what was complete is not played again"
    assert playing <= played, "what was interrupted is"
    assert len(folder.metrics()) == 2


# ------------------------------------------------------------------------------------------------ 8


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("pipeline.step=3", "Did you mean 'steps'"),
        ("pipelines.steps=3", "Did you mean 'pipeline'"),
        ("model.dtpye=float32", "Did you mean 'dtype'"),
        ("trainer.decay=cosin", "cosine"),
    ],
)
def test_promise_8_an_unknown_key_is_refused_with_the_near_name(override, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, [override])


def refused(config) -> str:
    """The message; and the name is free for the next try."""
    with pytest.raises(ConfigError) as refusal:
        run(config)
    assert not (config.folder / "config.toml").exists()
    return str(refusal.value)


def test_promise_8_an_unknown_option_of_an_environment_is_refused(small_model, tmp_path):
    environments = {"guess": {"options": {"number": 3}}}
    assert "numbers" in refused(make_config(tmp_path, small_model, environments=environments))


def test_promise_8_an_engine_that_cannot_load_is_refused_for_training(small_model, tmp_path):
    engine = {"kind": "server", "url": "http://127.0.0.1:1/v1"}
    assert "cannot load new weights" in refused(make_config(tmp_path, small_model, engine=engine))


def test_promise_8_a_chat_template_without_tools_is_refused_at_the_start(small_model, tmp_path):
    template = tmp_path / "plain.jinja"
    template.write_text(
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    message = refused(make_config(tmp_path, small_model, model={"chat_template": str(template)}))
    assert "does not render" in message
    assert "guess" in message


def test_promise_8_a_start_that_was_refused_can_be_tried_again_under_the_same_name(small_model, tmp_path):
    refused(make_config(tmp_path, small_model, environments={"gess": {}}))
    refused(make_config(tmp_path, tmp_path / "nowhere"))
    assert len(run(make_config(tmp_path, small_model, pipeline={"steps": 1})).metrics()) == 1


# ------------------------------------------------------------------------------------------------ 9


ELSEWHERE = """
import sys
from ludus.config import load_config
from ludus.launch import train as local
from tests.e2e.runs import run
local.write_report = lambda folder: folder.report_file
run(load_config(sys.argv[1]))
"""


def test_promise_9_the_same_seed_gives_the_same_weights_in_any_process_whatever_the_hash_seed(tmp_path):
    """From `tiny` on, so that its tokenizer and its first weights are compared too."""
    configs = [
        make_config(tmp_path / place, "tiny", seed=5, trainer={"lr": 1e-2}, pipeline={"steps": 2}, **EXACT)
        for place in ("here", "1", "2")
    ]
    for seed, config in zip(("1", "2"), configs[1:], strict=True):
        run_file = tmp_path / f"{seed}.toml"
        run_file.write_text(dump_config(config))
        env = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, "-c", ELSEWHERE, str(run_file)], env=env, check=True)
    folders = [run(configs[0]), *(RunFolder(config.folder) for config in configs[1:])]
    tokens = [
        sorted((s.trajectory.id, s.trajectory.sequences[0].ids.tolist()) for s in folder.read_trajectories())
        for folder in folders
    ]
    assert tokens[0] == tokens[1] == tokens[2]
    assert same_bits(weights_of(folders[0]), weights_of(folders[1]))
    assert same_bits(weights_of(folders[0]), weights_of(folders[2]))


def test_promise_9_another_seed_gives_another_run(small_model, tmp_path):
    folders = [run(make_config(tmp_path / str(seed), small_model, seed=seed, **EXACT)) for seed in (1, 2)]
    tasks = [[s.trajectory.task.id for s in folder.read_trajectories()] for folder in folders]
    assert tasks[0] != tasks[1]
