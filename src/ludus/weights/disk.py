"""Versions as files, for engines in other processes. Promise: a version is whole or not there; a damaged file is named, not loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ludus.errors import EngineFailed
from ludus.weights.checksum import Fingerprint, fingerprint, verify


class DiskChannel:
    """version-00000012.safetensors with its manifest, version-00000012.json. The manifest is written last: with it, the version exists."""

    def __init__(self, folder: str | Path, *, keep: int = 4) -> None:
        self._folder = Path(folder)
        self._keep = keep
        self._folder.mkdir(parents=True, exist_ok=True)

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        try:
            self._write(version, {name: tensor.detach().contiguous() for name, tensor in tensors.items()})
        except (OSError, SafetensorError) as error:
            raise EngineFailed(
                f"version {version} could not be written to {self._folder}: {error}. Free some space there, or choose another folder."
            ) from error
        for old in self.versions()[: -self._keep]:
            self._manifest(old).unlink(missing_ok=True)
            self._tensors(old).unlink(missing_ok=True)

    def fetch(self, version: int) -> Mapping[str, Tensor]:
        if version not in self.versions():
            raise EngineFailed(
                f"version {version} is not in {self._folder}; it holds {self.versions()}. Load the newest."
            )
        manifest = json.loads(self._manifest(version).read_text())
        path, size = self._tensors(version), manifest["bytes"]
        got = path.stat().st_size if path.exists() else 0
        if got != size:
            raise EngineFailed(
                f"{path} has {got} bytes; expected {size}. It was cut short; publish version {version} again."
            )
        try:
            tensors = load_file(path)
        except SafetensorError as error:
            raise EngineFailed(
                f"{path} cannot be read: {error}. It is damaged; publish version {version} again."
            ) from error
        verify(tensors, {name: _fingerprint(entry) for name, entry in manifest["tensors"].items()}, version=version)
        return tensors

    def versions(self) -> list[int]:
        return sorted(int(path.stem.removeprefix("version-")) for path in self._folder.glob("version-*.json"))

    def _write(self, version: int, tensors: dict[str, Tensor]) -> None:
        aside = self._folder / f".writing-{os.getpid()}.safetensors"
        try:
            save_file(tensors, aside)
            manifest = {
                "bytes": aside.stat().st_size,
                "tensors": {name: asdict(fingerprint(tensor)) for name, tensor in tensors.items()},
            }
            aside.replace(self._tensors(version))
            aside.write_text(json.dumps(manifest))
            aside.replace(self._manifest(version))
        finally:
            aside.unlink(missing_ok=True)

    def _tensors(self, version: int) -> Path:
        return self._folder / f"version-{version:08d}.safetensors"

    def _manifest(self, version: int) -> Path:
        return self._folder / f"version-{version:08d}.json"


def _fingerprint(entry: Mapping[str, Any]) -> Fingerprint:
    return Fingerprint(tuple(entry["shape"]), entry["dtype"], entry["checksum"])
