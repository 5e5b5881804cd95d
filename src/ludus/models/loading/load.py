"""Loads a causal language model by folder, pulled name or hub name, and suggests near names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ludus.errors import ConfigError, describe, nearest
from ludus.models.loading.known import KNOWN, is_model, models_folder, pulled_models
from ludus.models.loading.save import without_bars

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_model(
    name: str | Path, *, device: str | torch.device = "auto", dtype: str | torch.dtype = "auto"
) -> PreTrainedModel:
    """The model in evaluation mode."""
    place = resolve_device(device)
    options = {"dtype": resolve_dtype(dtype, device=place), "attn_implementation": "sdpa"}
    with without_bars(), _naming(name):
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(locate(name), **options)
    model.to(place)  # type: ignore[arg-type]
    for weight in model.parameters():
        if weight.data_ptr() % 64:  # unaligned: products take half as long again
            weight.data = weight.data.clone()
    model.eval()
    return model


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerBase:
    with _naming(name):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(locate(name))
    return tokenizer


def locate(name: str | Path) -> str:
    """What Transformers should load: a folder (of a model or a run), or a hub name (owner/name)."""
    text, folder = str(name), Path(name)
    for candidate in (folder, folder / "export", models_folder() / text):
        if is_model(candidate):
            return str(candidate)
    if folder.is_dir():
        raise ConfigError(
            f"model folder {text!r} holds no config.json, neither itself nor in export/; expected a model in Hugging "
            "Face format. A run writes its export/ at the end, or after Ctrl-C."
        )
    if text in KNOWN:
        raise ConfigError(f"model {text!r} has not been pulled yet; get it with `ludus models pull {text}`")
    if text == "tiny":
        raise ConfigError(
            "model 'tiny' is made from scratch by a run and not stored under that name; give the folder of one"
        )
    if text.count("/") == 1 and not text.startswith((".", "/", "~")):
        return text
    names = sorted({*KNOWN, *pulled_models()})
    raise ConfigError(
        f"model {text!r} is no folder, no pulled model and no hub name (owner/name).{nearest(text, names)} "
        f"Known names: {', '.join(names)}; `ludus models list` shows details."
    )


@contextmanager
def _naming(name: str | Path) -> Iterator[None]:
    """Turns whatever a loader raises for a bad name or broken files into a ConfigError."""
    try:
        yield
    except ConfigError:
        raise
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        what = "could not be loaded" if Path(name).exists() else "is no folder, and could not be fetched from the hub"
        raise ConfigError(
            f"model {str(name)!r} {what}: {describe(error)}\nExpected a causal language model in Hugging Face format; "
            "`ludus models list` shows the models here, `ludus models pull NAME` gets a known one."
        ) from error


def resolve_device(device: str | torch.device, *, key: str = "model.device") -> torch.device:
    """auto is the first GPU, else the CPU. `key` is the option, for the message."""
    if isinstance(device, torch.device):
        return device
    if device == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    name = "cuda:0" if device == "cuda" else device
    known = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    if name not in known:
        here = ", ".join(each if each == "cpu" else f"{each} ({device_name(torch.device(each))})" for each in known)
        raise ConfigError(f"{key} is {device!r}, which is not here.{nearest(device, known)} This process sees: {here}")
    return torch.device(name)


def device_name(device: torch.device) -> str:
    """The vendor's name, e.g. "NVIDIA H200"; "cpu" for a CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def resolve_dtype(dtype: str | torch.dtype, *, device: torch.device) -> torch.dtype:
    """auto is bfloat16 on a GPU that has it, else float32: on a CPU bfloat16 is slow and coarse."""
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" or not has_bfloat16(device) else torch.bfloat16
    if dtype not in DTYPES:
        raise ConfigError(f"model.dtype is {dtype!r}; known: auto, {', '.join(DTYPES)}")
    if DTYPES[dtype] == torch.bfloat16 and not has_bfloat16(device):
        raise ConfigError(
            f"model.dtype is 'bfloat16', but {device} ({device_name(device)}) does not support it: that needs compute "
            "capability 8 (Ampere). Set model.dtype to 'float32' or 'auto', or choose another device"
        )
    return DTYPES[dtype]


def has_bfloat16(device: torch.device) -> bool:
    """torch's own check includes older GPUs, which emulate it slowly."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0)
