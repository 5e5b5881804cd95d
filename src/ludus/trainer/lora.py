"""LoRA through PEFT: adapters are trained in place of the weights.

Promise: nothing else has a gradient or optimiser state. Readers of the policy get merged weights
under their usual names.

    add_adapters     y = W x + (alpha / rank) B A x, with B = 0 at first
    merged_tensors   W + (alpha / rank) B A
    export           FOLDER: the merged model; FOLDER/adapter: the adapters in PEFT's format
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ludus.config import LoraConfig
from ludus.errors import ConfigError, nearest
from ludus.models.loading.save import save_model, written_whole
from ludus.trainer.state import named_tensors

ADAPTER = "default"
"""PEFT's name of the only adapter."""


def add_adapters(model: PreTrainedModel, config: LoraConfig, *, seed: int) -> None:
    """Add adapters, initialised from `seed`; at first outputs stay the same. Rank 0 adds none."""
    if not config.rank:
        return
    try:
        import peft
    except ImportError:
        raise ConfigError(
            f"lora.rank is {config.rank}, but the package peft is not installed; `pip install 'ludus[lora]'`, "
            "or set lora.rank = 0"
        ) from None
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha or 2 * config.rank,
        target_modules=_targets(model, config),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(settings, model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(_of_adapter(name))
        if _of_adapter(name):
            parameter.data = parameter.data.to(model.dtype)


def has_adapters(model: nn.Module) -> bool:
    return any(_of_adapter(name) for name, _ in model.named_parameters())


def adapter_tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in named_tensors(model).items() if _of_adapter(name)}


@torch.no_grad()
def merged_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return `named_tensors` of the merged model. Sums are computed in float32, then cast back."""
    tensors = {name: tensor for name, tensor in named_tensors(model).items() if not _of_adapter(name)}
    adapted: dict[str, Any] = {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}
    for prefix, layer in adapted.items():
        down, up = (matrix[ADAPTER].weight.float() for matrix in (layer.lora_A, layer.lora_B))
        name = f"{prefix}.base_layer.weight"
        weight = tensors[name]
        tensors[name] = (weight.float() + layer.scaling[ADAPTER] * (up @ down)).to(weight.dtype)
    return {name.replace(".base_layer.", "."): tensor for name, tensor in tensors.items()}


def export(folder: str | Path, *, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Path:
    """Write the merged model, and beside it the adapters where there are some."""
    folder = Path(folder)
    if not has_adapters(model):
        return save_model(folder, model=model, tokenizer=tokenizer)
    save_model(folder, model=model, tokenizer=tokenizer, tensors=merged_tensors(model))
    with written_whole(folder / "adapter") as aside:
        settings: Any = model.peft_config[ADAPTER]
        settings.base_model_name_or_path = model.config._name_or_path
        settings.inference_mode = True
        settings.save_pretrained(str(aside))
        tensors = {
            f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}": tensor.contiguous()
            for name, tensor in adapter_tensors(model).items()
        }
        save_file(tensors, aside / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def _targets(model: PreTrainedModel, config: LoraConfig) -> list[str]:
    """Return last parts of names of the decoder's linear layers: all, or `config.targets`."""
    known = sorted(
        {name.rpartition(".")[2] for name, module in model.base_model.named_modules() if isinstance(module, nn.Linear)}
    )
    for target in config.targets:
        if target not in known:
            raise ConfigError(
                f"lora.targets names {target!r}, which is not a linear layer of this decoder.{nearest(target, known)} "
                f"Known: {', '.join(known)}; leave it empty for all of them."
            )
    return list(config.targets) or known


def _of_adapter(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name
