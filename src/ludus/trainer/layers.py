"""Layers of a decoder in training: compiled, or with activations computed again going backward.

Promise: the numbers stay the same, up to the rounding of fused operations.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from ludus.errors import ConfigError
from ludus.models.attention.packed import outside_of_compilation
from ludus.models.layers.inference import restore_layers
from ludus.models.layers.training import has_training_layers


def checkpoint_layers(model: PreTrainedModel) -> None:
    for layer in _layers(model, knob="checkpoint_activations"):
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
        layer.training = True  # Transformers checks it; inside, dropout stays off


def compile_layers(model: PreTrainedModel) -> None:
    """Compile the layers; one compilation serves all layers and lengths.

    Attention stays outside: its kernels are compiled already, and a row's segments, which change
    with every microbatch, would be taken for constants."""
    restore_layers(model)  # training layers are the alternative to a compiler
    outside_of_compilation()
    for layer in _layers(model, knob="compile"):
        layer.compile(dynamic=True)


def _layers(model: PreTrainedModel, *, knob: str) -> list[Any]:
    layers: Any = getattr(model.base_model, "layers", None)
    if not isinstance(layers, nn.ModuleList) or not all(hasattr(layer, "gradient_checkpointing") for layer in layers):
        raise ConfigError(
            f"trainer.{knob} is on, but {type(model).__name__} has no list of decoder layers to apply it to; turn it off"
        )
    return list(layers)


def compiles(choice: bool | None, model: PreTrainedModel) -> bool:
    """The run file's choice; else compile on a GPU where the model has no training layers."""
    return model.device.type == "cuda" and not has_training_layers(model) if choice is None else choice
