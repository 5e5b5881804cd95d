"""The devices of engine and trainer, from the run file and the devices of this machine."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ludus.config import EngineConfig, RunConfig
from ludus.models.loading.load import device_name, has_bfloat16, resolve_device, resolve_dtype

ALONE = 0.8
"""Share of a GPU's memory for the key-value cache where no trainer shares the device."""


@dataclass(frozen=True, slots=True)
class Devices:
    engine: torch.device
    trainer: torch.device


def devices_of(config: RunConfig) -> Devices:
    """Raise ConfigError for a name that is not a device of this process, with those that are."""
    if not config.devices:
        both = resolve_device(config.model.device)
        return Devices(both, both)
    places = [resolve_device(name, key=f"devices[{index}]") for index, name in enumerate(config.devices)]
    return Devices(places[0], places[-1])


def engine_config(config: RunConfig, *, devices: Devices, trains: bool = True) -> EngineConfig:
    """The run file's section, with the memory that a trainer leaves where it shares the device."""
    shared = trains and devices.engine == devices.trainer
    alone = {"memory": ALONE} if not config.engine.memory and not shared else {}
    return config.engine.model_copy(update=alone)


def chosen(config: RunConfig, *, trains: bool = True) -> list[str]:
    """Describe what the run file leaves to the device, as it is chosen on this machine."""
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
        lines.append(f"engine.memory {engine.memory:g} {unit} for the key-value cache")
    processes = config.pipeline.processes(on_gpu=devices.engine.type == "cuda")
    if trains and processes:
        lines.append(f"pipeline.session_processes {processes}: sessions are played in processes beside the run")
    return lines


def _named(device: torch.device) -> str:
    return str(device) if device.type == "cpu" else f"{device} ({device_name(device)})"
