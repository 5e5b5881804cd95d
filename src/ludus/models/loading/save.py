"""Exports a model in Hugging Face format. Promise: the folder is complete or as it was before."""

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
    """Writes weights (safetensors), configuration and tokenizer. `tensors` replace the model's."""
    with written_whole(Path(folder)) as aside, without_bars():
        model.save_pretrained(aside, safe_serialization=True, state_dict=dict(tensors) if tensors is not None else None)
        tokenizer.save_pretrained(aside)
    return Path(folder)


@contextmanager
def without_bars() -> Iterator[None]:
    """Hides Transformers' progress bars: a run shows its own progress."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """A folder to write into, which replaces `folder` if the block succeeds, else is removed."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        yield aside
        _replace(folder, aside)
    except (OSError, SafetensorError) as error:
        existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        raise CheckpointFailed(
            f"{folder} could not be written: {describe(error)}. Nothing was changed; "
            f"{shutil.disk_usage(existing).free / 1e9:.1f} GB are free there. Free some space or choose another folder."
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _replace(folder: Path, aside: Path) -> None:
    before = folder.with_name(f".{folder.name}.{os.getpid()}.before")
    replaces = folder.exists()
    if replaces:  # a folder cannot replace a non-empty one
        folder.rename(before)
    aside.rename(folder)
    if replaces:
        shutil.rmtree(before)
