"""Which device does what, decided once, from the run file and what is here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ludus.config import EngineConfig, RunConfig
from ludus.errors import TrainerFailed, describe
from ludus.models.faults import is_lost, lost
from ludus.models.loading.load import device_name, has_bfloat16, resolve_device, resolve_dtype

ALONE = 0.8
"""Share of a GPU's memory for keys and values where the trainer is elsewhere."""


@dataclass(frozen=True, slots=True)
class Devices:
    engine: torch.device
    trainer: torch.device


def devices_of(config: RunConfig) -> Devices:
    """ConfigError where a name is not a device of this process, with those that are."""
    if not config.devices:
        both = resolve_device(config.model.device)
        return Devices(both, both)
    places = [resolve_device(name, key=f"devices[{index}]") for index, name in enumerate(config.devices)]
    return Devices(places[0], places[-1])


def engine_config(config: RunConfig, *, devices: Devices, trains: bool = True) -> EngineConfig:
    """The run file's, with the memory that the trainer leaves it, where there is one."""
    shared = trains and devices.engine == devices.trainer
    alone = {"memory": ALONE} if not config.engine.memory and not shared else {}
    return config.engine.model_copy(update=alone)


def make_current(device: torch.device) -> None:
    """For this thread. Kernels of ours go to a thread's current device, which must be the one that the tensors are on."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


@contextmanager
def naming_loss(device: torch.device) -> Iterator[None]:
    """A GPU that disappears while it trains is a named failure; the engine names its own."""
    try:
        yield
    except RuntimeError as error:
        if not is_lost(error):
            raise
        raise TrainerFailed(lost(device, describe(error))) from error


def chosen(config: RunConfig, *, trains: bool = True) -> list[str]:
    """What the run file leaves to the device, as it will be here: lines for people."""
    devices = devices_of(config)
    dtype = resolve_dtype(config.model.dtype, device=devices.engine)
    engine = engine_config(config, devices=devices, trains=trains).sized(on_gpu=devices.engine.type == "cuda")
    trainer = f", trainer on {_named(devices.trainer)}" if trains else ""
    lines = [
        f"engine on {_named(devices.engine)}{trainer}, {str(dtype).removeprefix('torch.')}",
        f"engine.max_running {engine.max_running}, engine.max_cached {engine.max_cached}, engine.prefill_tokens {engine.prefill_tokens}",
    ]
    if dtype == torch.float32 and not has_bfloat16(devices.engine):
        lines.append(f"{devices.engine} has no bfloat16: float32 takes twice the memory, and is slower")
    if devices.engine.type == "cuda":
        unit = "of the device's memory" if engine.memory <= 1 else "GiB"
        lines.append(f"engine.memory {engine.memory:g} {unit} for keys and values")
    processes = config.pipeline.processes(on_gpu=devices.engine.type == "cuda")
    if trains and processes:
        lines.append(
            f"pipeline.session_processes {processes}: training's sessions are played outside of the run's own process"
        )
    return lines


def _named(device: torch.device) -> str:
    return str(device) if device.type == "cpu" else f"{device} ({device_name(device)})"
