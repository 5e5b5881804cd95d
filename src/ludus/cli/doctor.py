"""`ludus doctor`: what works on this machine, and how to fix what does not."""

from __future__ import annotations

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
    """List what works here and how to fix the rest. Exits with 1 if a required line is not ok."""
    import json

    lines = [line._replace(remedy="") if line.works else line for line in examine()]
    known = [line.name for line in lines]
    if unknown := [name for name in needed or [] if name not in known]:
        from ludus.errors import ConfigError, nearest

        raise ConfigError(f"unknown line {unknown[0]!r}.{nearest(unknown[0], known)} Known: {', '.join(known)}.")
    for line in lines:
        remedy = f" -> {line.remedy}" if line.remedy else ""
        text = f"{line.name:10} {'ok' if line.works else 'NO':3} {line.says}{remedy}"
        typer.echo(json.dumps(line._asdict()) if as_json else text)
    broken = [line.name for line in lines if not line.works and line.name in (*REQUIRED, *(needed or ()))]
    if broken:
        raise typer.Exit(1)


def examine() -> list[Line]:
    from ludus.sandboxes.detect import driver
    from ludus.worlds.needs import NEEDS

    drivers = [driver(kind) for kind in ("process", "namespace", "container")]
    sandboxes = [Line(each.kind, each.works, each.says, each.remedy) for each in drivers]
    worlds = [_world(name, namespace=drivers[1].works) for name in NEEDS]
    return [_python(), _torch(), _packages(), _machine(), _gpu(), *sandboxes, *worlds]


def _world(name: str, *, namespace: bool) -> Line:
    import shutil
    from importlib.util import find_spec

    from ludus.worlds.needs import NEEDS

    needs = NEEDS[name]
    no_modules = [package.module for package in needs.packages if find_spec(package.module) is None]
    no_programs = [program for program in needs.programs if shutil.which(program.name) is None]
    remedies = ['pip install "ludus[worlds]"'] * bool(no_modules)
    remedies += [f"apt-get install {program.package}" for program in no_programs]
    missing = [*no_modules, *(program.name for program in no_programs)]
    if needs.namespace and not namespace:
        missing, remedies = ["a namespace sandbox"], ["See the line namespace."]
    says = f"missing: {', '.join(missing)}" if missing else "world; everything installed"
    return Line(name, not missing, says, "; ".join(remedies))


def _python() -> Line:
    import platform
    import sys

    version = platform.python_version()
    fits = (3, 11) <= sys.version_info < (3, 14)
    return Line("python", fits, f"{version} at {sys.executable}", "Install Python 3.11, 3.12 or 3.13.")


def _torch() -> Line:
    """From its metadata: importing it takes seconds."""
    if found := _version("torch"):
        return Line("torch", True, f"{found}, built for {_built_for() or 'the CPU only'}")
    return Line("torch", False, "not installed", "pip install torch")


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _built_for() -> str:
    import re
    from importlib.util import find_spec
    from pathlib import Path

    spec = find_spec("torch")
    folder = Path(spec.origin).parent if spec and spec.origin else Path()
    text = (folder / "version.py").read_text() if (folder / "version.py").exists() else ""
    found = re.search(r"^cuda\b[^=]*= *['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return f"CUDA {found.group(1)}" if found else ""


def _packages() -> Line:
    """The dependencies of Ludus, without extras."""
    import re
    from importlib.metadata import requires

    needed = [line for line in requires("ludus") or [] if "extra ==" not in line]
    missing = [name for line in needed if not _version(name := re.split(r"[<>=!~;\[ ]", line)[0])]
    says = f"missing: {', '.join(missing)}" if missing else "all installed"
    return Line("packages", not missing, says, f"pip install {' '.join(missing)}")


def _machine() -> Line:
    import os
    import shutil

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    free = shutil.disk_usage(".").free / 2**30
    says = f"{cores} cores, {pages:.0f} GiB memory, {free:.0f} GiB free in this folder"
    return Line("machine", free > 1, says, "Free some disk space: runs are written to this folder.")


def _gpu() -> Line:
    import shutil
    import subprocess

    if shutil.which("nvidia-smi") is None:
        return Line("gpu", False, "no NVIDIA driver", "Optional: install NVIDIA's driver to use a GPU.")
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return Line("gpu", False, "nvidia-smi does not answer", "Check the driver: run nvidia-smi.")
    if answer.returncode or not answer.stdout.strip():
        cause = (answer.stderr or answer.stdout).strip().splitlines()[:1]
        says = f"nvidia-smi finds no GPU{': ' + cause[0] if cause else ''}"
        return Line("gpu", False, says, "Check the driver: run nvidia-smi.")
    cards = answer.stdout.strip().splitlines()
    says = f"{len(cards)} x {cards[0]}"
    if not _built_for():
        return Line("gpu", False, f"{says}, but torch is built for the CPU only", "Install a CUDA build of torch.")
    return Line("gpu", True, says)
