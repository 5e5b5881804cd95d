"""A trainer's state as named tensors: weights, optimiser, random numbers; restored bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from ludus.errors import CheckpointFailed
from ludus.trainer.checkpoint import Checkpoint
from ludus.trainer.optimizer import Named


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return weights and persistent buffers by name; tied ones once, under their first name."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            tensors[name] = tensor
    return tensors


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], *, folder: Path) -> None:
    copy_tensors(named_tensors(model), tensors, folder=folder)


def copy_tensors(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor], *, folder: Path) -> None:
    """Copy all `tensors` into `own`, or none."""
    differing = sorted(
        {name for name, tensor in own.items() if name not in tensors or tensors[name].shape != tensor.shape}
        | (tensors.keys() - own.keys())
    )
    if differing:
        raise CheckpointFailed(
            f"{folder} holds another model: {len(differing)} of {len(own)} tensors are missing, unknown or of another "
            f"shape, such as {differing[0]!r}. Resume with the model that the run was started with."
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])


def optimizer_tensors(optimizer: AdamW, model: Named) -> dict[str, Tensor]:
    """Return the optimiser's state by parameter name: "exp_avg/model.norm.weight"."""
    return {
        f"{key}/{name}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(optimizer: AdamW, model: Named, tensors: Mapping[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    optimizer.state.clear()
    for full_name, tensor in tensors.items():
        key, _, name = full_name.partition("/")
        if name not in parameters:
            raise CheckpointFailed(
                f"the optimiser state of {name!r} has no parameter in this model; resume with the model that the run "
                "was started with"
            )
        optimizer.state[parameters[name]][key] = tensor.to(parameters[name].device)


def learner_tensors(name: str, network: nn.Module, optimizer: AdamW) -> dict[str, Mapping[str, Tensor]]:
    """Return a network and its own optimiser by the names of their files in a checkpoint."""
    return {name: named_tensors(network), f"{name}_optimizer": optimizer_tensors(optimizer, network)}


def restore_learner(name: str, network: nn.Module, optimizer: AdamW, *, checkpoint: Checkpoint) -> None:
    load_weights(network, checkpoint.tensors(name), folder=checkpoint.folder)
    load_optimizer_tensors(optimizer, network, checkpoint.tensors(f"{name}_optimizer"))


def rng_states(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    return states | {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else states


def restore_rng(states: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
