"""Engines by the run file's `engine.kind`."""

from __future__ import annotations

from typing import cast

from ludus.config import EngineConfig, RunConfig
from ludus.engines.embedded import EmbeddedEngine
from ludus.engines.engine import Capabilities, Engine
from ludus.engines.server import ServerEngine
from ludus.errors import ConfigError
from ludus.launch.devices import devices_of, engine_config
from ludus.models.loading.load import load_model, resolve_dtype

CAPABILITIES: dict[str, Capabilities] = {
    "embedded": EmbeddedEngine.capabilities,
    "server": ServerEngine.capabilities,
    "chat": Capabilities(policies=False, load=False, score=False),
}


def make_engine(config: RunConfig, *, model_folder: str, trains: bool) -> Engine:
    """The engine of the run file. `trains`: a trainer needs its part of the device's memory."""
    if config.engine.kind not in CAPABILITIES:
        return cast("Engine", config.engine.factory(config, model_folder=model_folder, trains=trains))
    if config.engine.kind == "server":
        max_running = config.engine.sized(on_gpu=False).max_running
        return ServerEngine(config.engine.url, model=config.engine.model, max_running=max_running)
    devices = devices_of(config)
    dtype = resolve_dtype(config.model.dtype, device=devices.engine)
    return EmbeddedEngine(
        load_model(model_folder, device=devices.engine, dtype=dtype),
        config=engine_config(config, devices=devices, trains=trains),
        max_tokens=config.rollout.max_tokens,
    )


def require_loads(config: EngineConfig, *, command: str, instead: str) -> None:
    """Refuse an engine that cannot load new weights before anything of the run is started."""
    if config.kind in CAPABILITIES and not CAPABILITIES[config.kind].load:
        able = " or ".join(repr(kind) for kind, can in CAPABILITIES.items() if can.load)
        raise ConfigError(
            f"engine.kind is {config.kind!r}, which cannot load new weights; {command} needs {able}. {instead}"
        )
