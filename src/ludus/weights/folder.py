"""Versions as files, for engines in other processes and on other machines.

Promise: a version is whole or absent. A damaged file raises an error and is never loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ludus.errors import EngineFailed


class FolderChannel:
    """Keeps the newest `keep` versions in `folder`, as version-N.safetensors and version-N.json.

    The manifest (.json) is written last: the version exists once the manifest does."""

    def __init__(self, folder: str | Path, *, keep: int = 4) -> None:
        self.folder, self._keep = Path(folder), keep
        self.folder.mkdir(parents=True, exist_ok=True)

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        aside = self.folder / f".writing-{os.getpid()}.safetensors"
        try:
            save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, aside)
            manifest = json.dumps(sealed(aside))
            aside.replace(self._path(version, ".safetensors"))
            aside.write_text(manifest)
            aside.replace(self._path(version, ".json"))
        except (OSError, SafetensorError) as error:
            raise EngineFailed(
                f"version {version} could not be written to {self.folder}: {error}. "
                "Free some space there, or choose another folder."
            ) from error
        finally:
            aside.unlink(missing_ok=True)
        for old in self.versions()[: -self._keep]:
            self._path(old, ".json").unlink(missing_ok=True)
            self._path(old, ".safetensors").unlink(missing_ok=True)

    def fetch(self, version: int) -> Mapping[str, Tensor]:
        if version not in self.versions():
            raise EngineFailed(
                f"version {version} is not in {self.folder}; it holds {self.versions()}. Load the newest."
            )
        path = self._path(version, ".safetensors")
        if reason := damage(path, json.loads(self._path(version, ".json").read_text())):
            raise EngineFailed(f"{path} {reason}; publish version {version} again.")
        return load_file(path)

    def versions(self) -> list[int]:
        return sorted(int(path.stem.removeprefix("version-")) for path in self.folder.glob("version-*.json"))

    def _path(self, version: int, suffix: str) -> Path:
        return self.folder / f"version-{version:08d}{suffix}"


def sealed(path: Path) -> dict[str, Any]:
    """What a manifest says of a file."""
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def damage(path: Path, manifest: Mapping[str, Any]) -> str:
    """Why the file is not what was written; empty where it is."""
    size = path.stat().st_size if path.exists() else None
    if size != manifest["bytes"]:
        has = "is missing" if size is None else f"has {size} bytes"
        return f"{has}; expected {manifest['bytes']} bytes"
    if (digest := sealed(path)["sha256"]) != manifest["sha256"]:
        return f"has checksum {digest[:12]}; expected {manifest['sha256'][:12]}: it is damaged"
    return ""
