"""What `--model` and `--environments` may name."""

from __future__ import annotations

import pytest
import torch

from ludus.errors import ConfigError
from ludus.launch.names import find_model, model_keys, named_environments, slug
from ludus.models.loading.load import load_model
from ludus.trainer.checkpoint import checkpoint_folder, load_checkpoint
from ludus.trainer.state import named_tensors
from tests.e2e.runs import make_config, run


def test_an_endpoint_is_played_in_tokens_where_its_tokenizer_is_named_else_in_text():
    url = "http://127.0.0.1:7200/v1"
    assert model_keys(url) == ["engine.kind=chat", f"engine.url={url}"]
    assert model_keys(url, tokenizer="m") == ["engine.kind=server", f"engine.url={url}", "model.name=m"]
    with pytest.raises(ConfigError, match="goes with an endpoint's URL"):
        model_keys("m", tokenizer="m")


def test_a_run_is_its_export_and_a_checkpoint_is_exported_with_its_own_weights(small_model, tmp_path):
    config = make_config(tmp_path, small_model, store={"checkpoint_every": 1, "keep_checkpoints": 3})
    folder = run(config)
    assert find_model("r", root=str(tmp_path)) == find_model(str(folder.path)) == str(folder.export)
    checkpoint = checkpoint_folder(folder.path, 1)
    exported = find_model(str(checkpoint))
    weights, saved = named_tensors(load_model(exported, device="cpu")), load_checkpoint(checkpoint).tensors("model")
    assert all(torch.equal(weights[name], saved[name]) for name in saved)
    last = named_tensors(load_model(folder.export, device="cpu"))
    assert not all(torch.equal(weights[name], last[name]) for name in saved), "an earlier one, not the export"


def test_a_run_that_is_not_there_and_one_without_weights_are_told_apart(tmp_path):
    root = tmp_path / "runs"
    config = make_config(root, "tiny", name="begun")
    from ludus.store.run_folder import RunFolder

    RunFolder.create(config).close()
    with pytest.raises(ConfigError, match=r"is not a run folder.*Did you mean 'begun'"):
        find_model("runs/begin", root=str(root))
    with pytest.raises(ConfigError, match="neither an export nor a checkpoint"):
        find_model("begun", root=str(root))
    with pytest.raises(ConfigError, match="untrained"):
        find_model("tiny")
    assert find_model("smollm2-135m", root=str(root)) == "smollm2-135m", "the loader's to judge"


def test_environments_are_names_sources_or_all_that_can_be_made(monkeypatch):
    named = named_environments("guess, tests.launch.chat_stub:Successor")
    assert named == {"guess": "", "successor": "tests.launch.chat_stub:Successor"}
    monkeypatch.setattr("ludus.environments.registry.names", lambda: ["guess", "unmade"])
    told: list[str] = []
    assert list(named_environments("all", tell=told.append)) == ["guess"]
    assert told[0].startswith("unmade is left out: ")
    with pytest.raises(ConfigError, match="expected names"):
        named_environments(" , ")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("http://127.0.0.1:7200/v1", "127.0.0.1-7200"),
        ("runs/climb/export", "climb"),
        ("owner/Model-1.5B", "Model-1.5B"),
        ("..", "model"),
    ],
)
def test_an_evaluation_is_named_after_its_model(model, name):
    assert slug(model) == name
