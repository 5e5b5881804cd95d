"""Runs that train adapters: what the engine gets, what is stored, and what others can load."""

from __future__ import annotations

import asyncio

import pytest
import torch

from ludus.launch.clone import sft
from ludus.launch.names import export_checkpoint
from ludus.models.loading.load import load_model
from ludus.store.run_folder import RunFolder
from ludus.trainer import local as trainer_module
from ludus.trainer.checkpoint import checkpoint_folder
from ludus.trainer.state import named_tensors
from tests.e2e.runs import make_config, run
from tests.trainer.examples import same

pytest.importorskip("peft")
LORA = {"rank": 4}


def weights(folder):
    return named_tensors(load_model(folder, device="cpu"))


def test_a_run_with_adapters_passes_every_probe_and_leaves_a_whole_model_and_its_adapters(small_model, tmp_path):
    folder = run(make_config(tmp_path, small_model, lora=LORA, trainer={"lr": 1e-2}))
    assert all(line["probe/gap"] < 1e-3 for line in folder.metrics()), "the engine got what was trained"
    assert not same(weights(folder.export), weights(small_model))
    assert (folder.export / "adapter" / "adapter_config.json").is_file()


def test_a_checkpoint_of_adapters_is_resumed_exactly_and_exported_as_a_whole_model(small_model, tmp_path):
    settings = {"lora": LORA, "trainer": {"lr": 1e-2}, "engine": {"deterministic": True}, "pipeline": {"steps": 2}}
    store = {"checkpoint_every": 1, "keep_checkpoints": 3}
    whole = run(make_config(tmp_path, small_model, name="whole", store=store, **settings))
    begun = make_config(tmp_path, small_model, name="begun", store=store, **settings)
    run(begun, on_loop=stop_after_one)
    resumed = run(begun, resume=True)
    assert same(weights(resumed.export), weights(whole.export))
    first = export_checkpoint(checkpoint_folder(whole.path, 1))
    assert not same(weights(first), weights(whole.export))
    assert same(weights(export_checkpoint(checkpoint_folder(whole.path, 2))), weights(whole.export))


def stop_after_one(loop):
    publish = loop.trainer.publish

    def publish_and_stop():
        loop.stop()
        return publish()

    loop.trainer.publish = publish_and_stop


def test_cloning_with_adapters_exports_both(small_model, tmp_path):
    config = make_config(tmp_path, small_model, lora=LORA, sft={"steps": 2, "num_trajectories": 4})
    asyncio.run(sft(config))
    folder = RunFolder(config.folder)
    assert weights(folder.export).keys() == weights(small_model).keys()
    assert (folder.export / "adapter" / "adapter_model.safetensors").is_file()


def test_memory_that_ran_out_is_an_event_of_the_run(small_model, tmp_path, monkeypatch):
    plain, failures = trainer_module.sampled_logprobs, [torch.OutOfMemoryError("no more")]

    def scarce(model, microbatch, **knobs):
        if failures and len(microbatch.segments.lengths) > 1:
            raise failures.pop()
        return plain(model, microbatch, **knobs)

    monkeypatch.setattr(trainer_module, "sampled_logprobs", scarce)
    folder = run(make_config(tmp_path, small_model))
    events = [event for event in folder.events() if event["kind"] == "out_of_memory"]
    assert len(events) == 1
    assert events[0]["microbatch_tokens"] < events[0]["tokens"]
    assert len(folder.metrics()) == 3, "and the run went on"
