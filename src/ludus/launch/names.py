"""What `--model` and `--environments` may name, as keys of a run.

A model is a folder in Hugging Face format, a pulled model, a hub name, a run (its export, else its
newest checkpoint), a checkpoint's folder, or the URL of an OpenAI-compatible endpoint. An endpoint
is played in tokens where its tokenizer is named too, else in text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from ludus.environments import registry
from ludus.errors import ConfigError, LudusError
from ludus.models.loading.known import is_model
from ludus.models.loading.load import load_model, load_tokenizer
from ludus.store.run_folder import RunFolder
from ludus.trainer.checkpoint import ADAPTER, MODEL, latest_checkpoint, load_checkpoint
from ludus.trainer.lora import adapter_tensors, add_adapters, export
from ludus.trainer.state import copy_tensors, named_tensors

Tell = Callable[[str], None]
ALL = "all"


def model_keys(name: str, *, tokenizer: str = "", root: str = "runs") -> list[str]:
    """Return the overrides that select this model: ["model.name=runs/climb/export"]."""
    if name.startswith(("http://", "https://")):
        kind = "server" if tokenizer else "chat"
        return [f"engine.kind={kind}", f"engine.url={name}", *([f"model.name={tokenizer}"] if tokenizer else [])]
    if tokenizer:
        raise ConfigError(f"--tokenizer goes with an endpoint's URL; the model {name!r} has its own")
    return [f"model.name={find_model(name, root=root)}"]


def find_model(name: str, *, root: str = "runs") -> str:
    """Return the folder of a run or a checkpoint; any other name unchanged, for the loader."""
    if name == "tiny":
        raise ConfigError("model 'tiny' is untrained and created by every run; name a run that trained one")
    for path in (Path(name), Path(root) / name):
        if is_model(path):
            return str(path)
        if (path / "manifest.json").is_file():
            return str(export_checkpoint(path))
        if (path / "config.toml").is_file():
            return _of_run(RunFolder(path))
    if Path(name).parts[:1] == Path(root).parts[-1:]:  # meant as a run, not as a name of the hub
        RunFolder.open(name, root=root)
    return name


def _of_run(folder: RunFolder) -> str:
    if is_model(folder.export):
        return str(folder.export)
    checkpoint = latest_checkpoint(folder.path)
    if checkpoint is None:
        raise ConfigError(
            f"run {folder.path} has neither an export nor a checkpoint yet; it writes its export at the end, or "
            "after Ctrl-C"
        )
    return str(export_checkpoint(checkpoint))


def export_checkpoint(checkpoint: Path) -> Path:
    """Export a checkpoint's weights as a model to RUN/exports/, once."""
    folder = RunFolder.open(checkpoint.parent.parent)
    target = folder.path / "exports" / checkpoint.name
    if not is_model(target):
        config = folder.config()
        source = str(folder.path / "tiny") if config.model.name == "tiny" else config.model.name
        saved = load_checkpoint(checkpoint)
        tensors = saved.tensors(ADAPTER if config.lora.rank else MODEL)
        model = load_model(source, device="cpu", dtype=next(iter(tensors.values())).dtype)
        add_adapters(model, config.lora, seed=config.seed)
        copy_tensors(adapter_tensors(model) or named_tensors(model), tensors, folder=checkpoint)
        export(target, model=model, tokenizer=load_tokenizer(source))
    return target


def named_environments(names: str, *, tell: Tell = print) -> dict[str, str]:
    """Return the source of each environment of a list such as "guess,wordle" or "worlds/mine.py",
    "" for a registered one. "all" selects the registered ones that this machine can make; `tell`
    gets a line for each of the others."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise ConfigError(f"--environments is {names!r}; expected names such as guess,wordle, or {ALL}")
    if ALL in wanted:
        wanted = [name for name in wanted if name != ALL]
        for name in registry.names():
            try:
                registry.make(name)
                wanted.append(name)
            except LudusError as error:
                tell(f"{name} is left out: {error}")
    return dict(map(registry.locate, wanted))


def slug(model: str) -> str:
    """Return a run's name for this model: "http://127.0.0.1:7200/v1" -> "127.0.0.1-7200"."""
    text = re.sub(r"^https?://", "", model).removesuffix("/").removesuffix("/v1").removesuffix("/export")
    return re.sub(r"[^\w.+-]+", "-", text.rpartition("/")[2] or text).strip("-.") or "model"
