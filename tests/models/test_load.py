from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ludus.errors import ConfigError
from ludus.models.loading.load import load_model, load_tokenizer, locate, resolve_device, resolve_dtype
from ludus.models.loading.tiny import make_tiny


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny", corpus=["some words"], seed=1, layers=1, hidden=32)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LUDUS_HOME", str(tmp_path))
    return tmp_path


def test_a_folder_loads_in_evaluation_mode(tiny: Path) -> None:
    model = load_model(tiny, device="cpu", dtype="bfloat16")
    assert not model.training
    assert model.dtype == torch.bfloat16
    assert model.config._attn_implementation == "sdpa"
    assert load_tokenizer(str(tiny)).eos_token == "<|end|>"


def test_a_run_folder_stands_for_its_export_and_a_pulled_name_for_its_folder(tiny: Path, home: Path) -> None:
    run = home / "runs" / "first"
    run.mkdir(parents=True)
    (run / "export").symlink_to(tiny)
    (home / "models").mkdir()
    (home / "models" / "mine").symlink_to(tiny)
    assert locate(run) == str(run / "export")
    assert locate("mine") == str(home / "models" / "mine")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smolm2-135m", "Did you mean 'smollm2-135m'"),
        ("smollm2-135m", "ludus models pull smollm2-135m"),
        ("no/such/folder", "no folder, no pulled model and no hub name"),
        ("tiny", "made from scratch"),
    ],
)
def test_a_wrong_name_is_told_what_would_be_right(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_model(name)


def test_a_folder_without_a_model_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        load_tokenizer(tmp_path)


def test_a_damaged_model_is_one_clear_error(tiny: Path, tmp_path: Path) -> None:
    for path in tiny.iterdir():
        (tmp_path / path.name).write_bytes(
            path.read_bytes()[:500] if path.suffix == ".safetensors" else path.read_bytes()
        )
    with pytest.raises(ConfigError, match="could not be loaded"):
        load_model(tmp_path, device="cpu")


def test_devices_and_types_are_resolved_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = resolve_device("cpu")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert resolve_dtype("auto", device=cpu) == torch.float32
    assert resolve_dtype("auto", device=torch.device("cuda")) == torch.bfloat16
    assert resolve_device("auto").type in ("cpu", "cuda")
    with pytest.raises(ConfigError, match=r"model.device is 'gpu', which is not here.*sees: cpu"):
        resolve_device("gpu")
    with pytest.raises(ConfigError, match="is 'cuda:99', which is not here"):
        resolve_device("cuda:99")
    with pytest.raises(ConfigError, match="known: auto, float32, bfloat16"):
        resolve_dtype("int4", device=cpu)
