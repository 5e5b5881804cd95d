"""What a run needs to resume.

Promise: a checkpoint is whole or absent. A damaged one raises an error and is never half loaded.

    RUN/checkpoints/step-00000050/   manifest.json  state.json  model.safetensors  ...

A run that trains adapters has adapter.safetensors in place of the model, which never changes. Files
are written to a folder beside it, flushed to the disk and moved into place. The manifest holds the
size and checksum of each file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ludus.errors import CheckpointFailed
from ludus.weights.folder import damage, sealed

MODEL, ADAPTER = "model", "adapter"
_MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d+)(\.replaced)?")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified checkpoint: the saved `state`, and tensors by the name they were saved under."""

    folder: Path
    state: Mapping[str, Any]

    def tensors(self, name: str) -> dict[str, Tensor]:
        file = self.folder / f"{name}.safetensors"
        if not file.is_file():
            held = ", ".join(sorted(path.stem for path in self.folder.glob("*.safetensors"))) or "no tensors"
            raise CheckpointFailed(
                f"{self.folder} holds no {file.name}, but {held}: it was written with another lora.rank, critic.kind or "
                "critic.baseline. Resume with the settings that the run was started with."
            )
        return load_file(file)


def checkpoint_folder(run_folder: str | Path, step: int) -> Path:
    return Path(run_folder) / "checkpoints" / f"step-{step:08d}"


def save_checkpoint(
    folder: str | Path, *, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any], keep: int
) -> None:
    """Write `folder`, then remove all but the newest `keep`. A failed write removes none."""
    folder = Path(folder)
    aside = folder.with_name(f".writing-{folder.name}")
    try:
        shutil.rmtree(aside, ignore_errors=True)  # left by a process that was killed here
        aside.mkdir(parents=True)
        for name, named in tensors.items():
            save_file({key: tensor.contiguous() for key, tensor in named.items()}, aside / f"{name}.safetensors")
        (aside / "state.json").write_text(json.dumps(state))
        _seal(aside)
        _move_into_place(aside, folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise CheckpointFailed(
            f"checkpoint {folder} could not be written: {error}. Earlier checkpoints are untouched; "
            "free some space on that disk, or lower store.keep_checkpoints."
        ) from error
    for old in _candidates(folder.parent)[keep:]:
        shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(folder: str | Path) -> Checkpoint:
    """Check every file against the manifest, then return the checkpoint."""
    folder = Path(folder)
    try:
        files = dict(json.loads((folder / _MANIFEST).read_text())["files"])
        for name, entry in files.items():
            if reason := damage(folder / name, entry):
                raise CheckpointFailed(f"{folder / name} {reason}. {_NEXT}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointFailed(
            f"{folder / _MANIFEST} cannot be read ({error}); expected the manifest of a checkpoint. {_NEXT}"
        ) from error
    return Checkpoint(folder, json.loads((folder / "state.json").read_text()))


def latest_checkpoint(run_folder: str | Path) -> Path | None:
    """Return the newest whole checkpoint of a run. Broken ones are skipped with a warning."""
    for folder in _candidates(Path(run_folder) / "checkpoints"):
        try:
            return load_checkpoint(folder).folder
        except CheckpointFailed as error:
            warnings.warn(f"skipped a broken checkpoint: {error}", stacklevel=2)
    return None


_NEXT = "Resume from another checkpoint of the run, or start a new run."


def _candidates(folder: Path) -> list[Path]:
    """Newest first. One that was being replaced when the process died follows its successor."""
    found = [(path, match) for path in folder.glob("step-*") if (match := _NAME.fullmatch(path.name))]
    return [path for path, match in sorted(found, key=lambda item: (-int(item[1][1]), bool(item[1][2])))]


def _seal(folder: Path) -> None:
    """Add the manifest and flush everything, so that the move alone makes the checkpoint exist."""
    paths = sorted(folder.iterdir())
    (folder / _MANIFEST).write_text(json.dumps({"files": {path.name: sealed(path) for path in paths}}, indent=1))
    for path in (*paths, folder / _MANIFEST, folder):
        _flush(path)


def _move_into_place(aside: Path, folder: Path) -> None:
    replaced = folder.with_name(f"{folder.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    if folder.exists():
        folder.rename(replaced)
    aside.rename(folder)
    _flush(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
