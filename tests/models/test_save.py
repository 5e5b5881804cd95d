from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ludus.errors import CheckpointFailed
from ludus.models.loading.load import load_model, load_tokenizer
from ludus.models.loading.save import save_model, written_whole
from ludus.models.loading.tiny import make_tiny

CRAMPED = """
import resource, sys
from ludus.errors import CheckpointFailed
from ludus.models.loading.load import load_model, load_tokenizer
from ludus.models.loading.save import save_model
model, tokenizer = load_model(sys.argv[1], device="cpu"), load_tokenizer(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    save_model(sys.argv[1], model=model, tokenizer=tokenizer)
except CheckpointFailed as error:
    print(error)
"""


def make(folder: Path, *, seed: int) -> Path:
    return make_tiny(folder, corpus=["some words"], seed=seed, layers=1, hidden=32)


def test_an_export_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    old, new = make(tmp_path / "model", seed=1), make(tmp_path / "other", seed=2)
    (old / "stale.txt").write_text("of the export before")
    model = load_model(new, device="cpu")
    save_model(old, model=model, tokenizer=load_tokenizer(new))
    loaded = load_model(old, device="cpu")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "other"]
    assert not (old / "stale.txt").exists()


def test_a_write_that_finds_no_room_changes_nothing_and_says_so(tmp_path: Path) -> None:
    folder = make(tmp_path / "model", seed=1)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    ran = subprocess.run([sys.executable, "-c", CRAMPED, str(folder)], capture_output=True, text=True, check=True)
    assert "could not be written" in ran.stdout
    assert "GB are free there" in ran.stdout
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_interrupted_write_leaves_no_trace(tmp_path: Path) -> None:
    def interrupted() -> None:
        with written_whole(tmp_path / "model") as aside:
            (aside / "half").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointFailed, match="could not be written"), written_whole(tmp_path / "file" / "model"):
        pass
