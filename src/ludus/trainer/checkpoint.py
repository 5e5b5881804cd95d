"""What a run needs to resume.

Promise: a checkpoint is whole or absent. A damaged one raises an error and is never half loaded.

    RUN/checkpoints/step-00000050/   manifest.json  state.json  model.safetensors  optimizer.safetensors  rng.safetensors  ...

A run that trains adapters has adapter.safetensors in place of the model, whose weights never change.
Files are written to a folder beside it, flushed to the disk and moved into place. The manifest holds
the size and checksum of each file.
"""

from __future__ import annotations

import hashlib
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

MODEL, ADAPTER = "model", "adapter"
_MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d+)(\.replaced)?")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified checkpoint: the saved `state`, and tensors by the name they were saved under."""

    folder: Path
    state: Mapping[str, Any]

    def tensors(self, name: str) -> dict[str, Tensor]:
        return load_file(self.folder / f"{name}.safetensors")


def checkpoint_folder(run_folder: str | Path, step: int) -> Path:
    return Path(run_folder) / "checkpoints" / f"step-{step:08d}"


def save_checkpoint(
    folder: str | Path,
    *,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    keep: int,
) -> None:
    """Write `folder`, then remove all but the newest `keep` checkpoints beside it.

    A failed write leaves the existing ones alone.
    """
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
        manifest = json.loads((folder / _MANIFEST).read_text())
        expected = {name: (entry["bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointFailed(
            f"{folder / _MANIFEST} cannot be read ({error}); expected the manifest of a checkpoint. {_NEXT}"
        ) from error
    for name, (size, digest) in expected.items():
        _verify(folder / name, size=size, digest=digest)
    return Checkpoint(folder, json.loads((folder / "state.json").read_text()))


def latest_checkpoint(run_folder: str | Path) -> Path | None:
    """Return the newest whole checkpoint of a run, or None. Broken ones are skipped with a warning."""
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
    names = sorted(path.name for path in folder.iterdir())
    entries = {name: {"bytes": (folder / name).stat().st_size, "sha256": _digest(folder / name)} for name in names}
    (folder / _MANIFEST).write_text(json.dumps({"files": entries}, indent=1))
    for path in (*(folder / name for name in names), folder / _MANIFEST, folder):
        _flush(path)


def _move_into_place(aside: Path, folder: Path) -> None:
    replaced = folder.with_name(f"{folder.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    if folder.exists():
        folder.rename(replaced)
    aside.rename(folder)
    _flush(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _verify(path: Path, *, size: int, digest: str) -> None:
    got = path.stat().st_size if path.exists() else None
    if got != size:
        has = "is missing" if got is None else f"has {got} bytes"
        raise CheckpointFailed(f"{path} {has}; the manifest says {size} bytes. {_NEXT}")
    if (actual := _digest(path)) != digest:
        raise CheckpointFailed(
            f"{path} has checksum {actual[:12]}; the manifest says {digest[:12]}. It is damaged. {_NEXT}"
        )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
