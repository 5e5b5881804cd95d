"""`ludus doctor`: what works on this machine, and how to fix what does not."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

REQUIRED = ("python", "torch", "packages", "process")
"""Every run needs these; the others are checked only if they are named as arguments."""


class Line(NamedTuple):
    name: str
    works: bool
    says: str
    remedy: str = ""


def doctor(
    needed: Annotated[
        list[str] | None, typer.Argument(help="Lines that must be ok, e.g. namespace container gpu.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """List what works here and how to fix the rest; exit with 1 if a needed one fails."""
    from ludus.errors import ConfigError, nearest

    lines = [line._replace(remedy="") if line.works else line for line in examine()]
    known = [line.name for line in lines]
    for name in needed or ():
        if name not in known:
            raise ConfigError(f"unknown line {name!r}.{nearest(name, known)} Known: {', '.join(known)}.")
    for line in lines:
        remedy = f" -> {line.remedy}" if line.remedy else ""
        text = f"{line.name:10} {'ok' if line.works else 'NO':3} {line.says}{remedy}"
        typer.echo(json.dumps(line._asdict()) if as_json else text)
    if any(not line.works and line.name in (*REQUIRED, *(needed or ())) for line in lines):
        raise typer.Exit(1)


def examine() -> list[Line]:
    from ludus.sandboxes.detect import driver
    from ludus.worlds.needs import NEEDS

    drivers = [driver(kind) for kind in ("process", "namespace", "container")]
    sandboxes = [Line(each.kind, each.works, each.says, each.remedy) for each in drivers]
    worlds = [_world(name, namespace=drivers[1].works) for name in NEEDS]
    return [_python(), _torch(), _packages(), _machine(), _gpu(), *sandboxes, *worlds]


def _world(name: str, *, namespace: bool) -> Line:
    from ludus.worlds.needs import NEEDS

    needs = NEEDS[name]
    no_modules = [package.module for package in needs.packages if util.find_spec(package.module) is None]
    no_programs = [program for program in needs.programs if shutil.which(program.name) is None]
    remedies = ['pip install "ludus[worlds]"'] * bool(no_modules)
    remedies += [f"apt-get install {program.package}" for program in no_programs]
    missing = [*no_modules, *(program.name for program in no_programs)]
    if needs.namespace and not namespace:
        missing, remedies = ["a namespace sandbox"], ["See the line namespace."]
    says = f"missing: {', '.join(missing)}" if missing else "world; everything installed"
    return Line(name, not missing, says, "; ".join(remedies))


def _python() -> Line:
    fits = (3, 11) <= sys.version_info < (3, 14)
    says = f"{platform.python_version()} at {sys.executable}"
    return Line("python", fits, says, "Install Python 3.11, 3.12 or 3.13.")


def _torch() -> Line:
    """From its metadata: importing it takes seconds."""
    found = _version("torch")
    says = f"{found}, built for {_built_for() or 'the CPU only'}" if found else "not installed"
    return Line("torch", bool(found), says, "pip install torch")


def _version(package: str) -> str:
    """The installed version; empty if there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _built_for() -> str:
    spec = util.find_spec("torch")
    file = Path(spec.origin).with_name("version.py") if spec and spec.origin else Path("version.py")
    text = file.read_text() if file.exists() else ""
    found = re.search(r"^cuda\b[^=]*= *['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return f"CUDA {found.group(1)}" if found else ""


def _packages() -> Line:
    """The dependencies of Ludus, without extras."""
    required = [each for each in metadata.requires("ludus") or [] if "extra ==" not in each]
    names = [re.split(r"[<>=!~;\[ ]", requirement)[0] for requirement in required]
    missing = [name for name in names if not _version(name)]
    says = f"missing: {', '.join(missing)}" if missing else "all installed"
    return Line("packages", not missing, says, f"pip install {' '.join(missing)}")


def _machine() -> Line:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    free = shutil.disk_usage(".").free / 2**30
    says = f"{cores} cores, {memory:.0f} GiB memory, {free:.0f} GiB free in this folder"
    return Line("machine", free > 1, says, "Free some disk space: runs are written to this folder.")


def _gpu() -> Line:
    if shutil.which("nvidia-smi") is None:
        return Line("gpu", False, "no NVIDIA driver", "Optional: install NVIDIA's driver to use a GPU.")
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    check = "Check the driver: run nvidia-smi."
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return Line("gpu", False, "nvidia-smi does not answer", check)
    cards = answer.stdout.strip().splitlines()
    if answer.returncode or not cards:
        cause = (answer.stderr or answer.stdout).strip().splitlines()[:1]
        return Line("gpu", False, ": ".join(["nvidia-smi finds no GPU", *cause]), check)
    says = f"{len(cards)} x {cards[0]}"
    if not _built_for():
        return Line("gpu", False, f"{says}, but torch is built for the CPU only", "Install a CUDA build of torch.")
    return Line("gpu", True, says)
