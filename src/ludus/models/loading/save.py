"""Export in Hugging Face format. Promise: the folder holds a whole model or is not there; what was there before survives a failed write."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ludus.errors import CheckpointFailed, describe


def save_model(
    folder: str | Path,
    *,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tensors: Mapping[str, Tensor] | None = None,
) -> Path:
    """Writes weights (safetensors), configuration and tokenizer, so that AutoModelForCausalLM and other tools can load them. `tensors`
    take the place of the model's own."""
    with written_whole(Path(folder)) as aside, without_bars():
        model.save_pretrained(aside, safe_serialization=True, state_dict=dict(tensors) if tensors is not None else None)
        tokenizer.save_pretrained(aside)
    return Path(folder)


@contextmanager
def without_bars() -> Iterator[None]:
    """The progress a person follows is the run's; Transformers' own bars stay away."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """A folder to write into, which takes the place of `folder` when the block ends well and vanishes when it does not."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        yield aside
        _replace(folder, aside)
    except (OSError, SafetensorError) as error:
        raise CheckpointFailed(
            f"{folder} could not be written: {describe(error)}. Nothing was changed; {_room(folder)}. "
            "Free some space or choose another folder."
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _replace(folder: Path, aside: Path) -> None:
    if not folder.exists():
        aside.rename(folder)
        return
    before = folder.with_name(f".{folder.name}.{os.getpid()}.before")  # a folder cannot be renamed onto a full one
    folder.rename(before)
    aside.rename(folder)
    shutil.rmtree(before)


def _room(folder: Path) -> str:
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    return f"{shutil.disk_usage(existing).free / 1e9:.1f} GB are free there"
