"""Limits on memory, processes and processor time of a sandbox, by control groups (cgroup v2).

    /sys/fs/cgroup/ANCESTOR/ludus/ID     ANCESTOR: our nearest group that may delegate controllers

Groups are made below our own, so that the limits of this process hold for its sandboxes too.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from ludus.sandboxes.sandbox import Room

NEEDED = ("memory", "pids", "cpu")
PARENT = "ludus"
_PERIOD_US = 100_000


@dataclass(frozen=True, slots=True)
class Mounted:
    """The mounted hierarchy, and the group that this process is in."""

    root: Path
    own: Path

    @property
    def controllers(self) -> tuple[str, ...]:
        available = _read(self.root / "cgroup.controllers").split()
        return tuple(name for name in NEEDED if name in available)


@dataclass(frozen=True, slots=True)
class Parent:
    """The group in which sandboxes get theirs. Without a folder, none can be made."""

    folder: Path | None = None
    controllers: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(name for name in NEEDED if name not in self.controllers)


@dataclass(frozen=True, slots=True)
class Group:
    """The control group of one sandbox."""

    folder: Path

    def remove(self, *, patience_s: float = 0.5) -> bool:
        """Kills everything inside. False if some is left for the next sweep."""
        until_s = time.monotonic() + patience_s
        while not _removed(self.folder):
            if time.monotonic() > until_s:
                return False
            time.sleep(0.002)
        return True


def make(parent: Parent, name: str, room: Room) -> Group:
    assert parent.folder is not None
    folder = parent.folder / name
    folder.mkdir()
    for controller in parent.controllers:
        for file, value in settings(controller, room).items():
            if file != "memory.swap.max" or (folder / file).exists():  # no swap accounting
                (folder / file).write_text(value)
    return Group(folder)


def settings(controller: str, room: Room) -> dict[str, str]:
    """Files of a group, and their values."""
    if controller == "memory":
        return {"memory.max": str(room.memory_mb * 2**20), "memory.swap.max": "0"}
    if controller == "pids":
        return {"pids.max": str(room.num_processes)}
    return {"cpu.max": f"{int(room.cpus * _PERIOD_US)} {_PERIOD_US}"}


@functools.cache
def find() -> Parent:
    """The nearest group that works, found once by making a group and moving a process into it."""
    found = mounted()
    if found is None or not found.controllers:
        return Parent()
    # a group with processes cannot delegate controllers, so try its ancestors too
    for folder in (found.own, *found.own.parents):
        parent = Parent(folder / PARENT, found.controllers)
        if folder.is_relative_to(found.root) and _works(parent):
            return parent
    return Parent()


def mounted(mountinfo: str | None = None, membership: str | None = None) -> Mounted | None:
    own = "/"
    for line in (membership if membership is not None else _read("/proc/self/cgroup")).splitlines():
        if line.startswith("0::"):
            own = line.removeprefix("0::")
    for line in (mountinfo if mountinfo is not None else _read("/proc/self/mountinfo")).splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            root, point = before.split(" ")[3:5]
            return Mounted(Path(point), _below(point, root, own))
    return None


def leftovers(prefix: str) -> dict[str, Group]:
    """Groups of sandboxes by id, for ids that begin with `prefix`."""
    parent = find().folder
    return {folder.name: Group(folder) for folder in parent.glob(f"{prefix}*")} if parent else {}


def _below(point: str, root: str, path: str) -> Path:
    """Our group's folder. The mount may show only a part of the hierarchy, from `root` on."""
    inside = path if root == "/" else path.removeprefix(root) if path.startswith(root) else "/"
    folder = Path(point) / inside.lstrip("/")
    return folder if folder.is_dir() else Path(point)


def _works(parent: Parent) -> bool:
    assert parent.folder is not None
    trial = f"trial-{os.getpid()}-{time.monotonic_ns()}"
    try:
        _delegate(parent.folder.parent, parent.controllers)
        parent.folder.mkdir(exist_ok=True)
        _delegate(parent.folder, parent.controllers)
        group = Group(parent.folder / trial)
        try:
            make(parent, trial, Room())
            join = f"echo 0 > {group.folder}/cgroup.procs"
            return subprocess.run(["/bin/sh", "-c", join], capture_output=True, check=False).returncode == 0
        finally:
            group.remove()
    except OSError:
        return False


def _delegate(folder: Path, controllers: tuple[str, ...]) -> None:
    enabled = _read(folder / "cgroup.subtree_control").split()
    missing = [f"+{name}" for name in controllers if name not in enabled]
    if missing:
        (folder / "cgroup.subtree_control").write_text(" ".join(missing))


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        for pid in _read(folder / "cgroup.procs").split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        return False
    return True


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
