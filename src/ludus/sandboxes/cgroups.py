"""Limits on memory, processes and processor time of a sandbox, by control groups (v1, v2 or both).

    v1   /sys/fs/cgroup/memory/OWN/ludus/ID   one tree per controller
    v2   /sys/fs/cgroup/ANCESTOR/ludus/ID     ANCESTOR: our nearest group that may delegate

Groups are made below our own, so that the limits of this process hold for its sandboxes too.
Without the pids controller, RLIMIT_NPROC would count the processes of all sandboxes together.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ludus.sandboxes.sandbox import Room

NEEDED = ("memory", "pids", "cpu")
PARENT = "ludus"
_PERIOD_US = 100_000


@dataclass(frozen=True, slots=True)
class Mounted:
    """A mounted hierarchy, and the group that this process is in."""

    version: int
    controllers: frozenset[str]
    root: Path
    own: Path


@dataclass(frozen=True, slots=True)
class Trees:
    """Where groups can be made: version and folder by controller."""

    places: Mapping[str, tuple[int, Path]]

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(name for name in NEEDED if name not in self.places)


@dataclass(frozen=True, slots=True)
class Group:
    """The control groups of one sandbox."""

    folders: tuple[Path, ...]

    def remove(self, *, patience_s: float = 0.5) -> bool:
        """Kills everything inside. False if some is left for the next sweep."""
        until_s = time.monotonic() + patience_s
        while True:
            left = [folder for folder in self.folders if not _removed(folder)]
            if not left:
                return True
            if time.monotonic() > until_s:
                return False
            time.sleep(0.002)


def make(trees: Trees, name: str, room: Room) -> Group:
    group = Group(tuple(dict.fromkeys(place / name for _, place in trees.places.values())))
    for folder in group.folders:
        folder.mkdir()
    for controller, (version, place) in trees.places.items():
        for file, value in settings(controller, version, room):
            _set(place / name / file, value)
    return group


def settings(controller: str, version: int, room: Room) -> list[tuple[str, str]]:
    """Files of a group, and their values."""
    memory, quota = str(room.memory_mb * 2**20), str(int(room.cpus * _PERIOD_US))
    pids = [("pids.max", str(room.num_processes))]
    return {
        ("memory", 1): [("memory.limit_in_bytes", memory), ("memory.memsw.limit_in_bytes", memory)],
        ("memory", 2): [("memory.max", memory), ("memory.swap.max", "0")],
        ("pids", 1): pids,
        ("pids", 2): pids,
        ("cpu", 1): [("cpu.cfs_period_us", str(_PERIOD_US)), ("cpu.cfs_quota_us", quota)],
        ("cpu", 2): [("cpu.max", f"{quota} {_PERIOD_US}")],
    }[controller, version]


@functools.cache
def find() -> Trees:
    """What this process may use, found once by making a group and moving a process into it."""
    places: dict[str, tuple[int, Path]] = {}
    for mounted in sorted(mounts(), key=lambda each: each.version):
        wanted = [name for name in NEEDED if name in mounted.controllers and name not in places]
        place = _usable(mounted, wanted) if wanted else None
        if place is not None:
            places |= dict.fromkeys(wanted, (mounted.version, place))
    return Trees(places)


def mounts(mountinfo: str | None = None, membership: str | None = None) -> Iterator[Mounted]:
    own: dict[str, str] = {}
    for line in (membership if membership is not None else _read("/proc/self/cgroup")).splitlines():
        _, names, path = line.split(":", 2)
        own |= dict.fromkeys(names.split(","), path)
    for line in (mountinfo if mountinfo is not None else _read("/proc/self/mountinfo")).splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, point = before.split(" ")[3:5]
        if kind == "cgroup2":
            controllers = frozenset(_read(f"{point}/cgroup.controllers").split())
            yield Mounted(2, controllers, Path(point), _below(point, root, own.get("", "/")))
        elif kind == "cgroup":
            controllers = frozenset(options.split(",")) & frozenset(NEEDED)
            for name in sorted(controllers):
                yield Mounted(1, frozenset([name]), Path(point), _below(point, root, own.get(name, "/")))


def leftovers(prefix: str) -> dict[str, Group]:
    """Groups of sandboxes by id, for ids that begin with `prefix`."""
    found: dict[str, list[Path]] = {}
    for _, place in find().places.values():
        for folder in place.glob(f"{prefix}*"):
            if folder not in found.setdefault(folder.name, []):
                found[folder.name].append(folder)
    return {name: Group(tuple(folders)) for name, folders in found.items()}


def _below(point: str, root: str, path: str) -> Path:
    """Our group's folder. The mount may show only a part of the hierarchy, from `root` on."""
    inside = path if root == "/" else path.removeprefix(root) if path.startswith(root) else "/"
    folder = Path(point) / inside.lstrip("/")
    return folder if folder.is_dir() else Path(point)


def _usable(mounted: Mounted, wanted: list[str]) -> Path | None:
    candidates = [mounted.own]
    if mounted.version == 2:  # a group with processes cannot delegate controllers
        candidates += [folder for folder in mounted.own.parents if folder.is_relative_to(mounted.root)]
    for folder in candidates:
        if _try(folder / PARENT, wanted, version=mounted.version):
            return folder / PARENT
    return None


def _try(parent: Path, wanted: list[str], *, version: int) -> bool:
    trial = parent / f"trial-{os.getpid()}-{time.monotonic_ns()}"
    try:
        if version == 2:
            _delegate(parent.parent, wanted)
        parent.mkdir(exist_ok=True)
        if version == 2:
            _delegate(parent, wanted)
        trial.mkdir()
        try:
            for name in wanted:
                for file, value in settings(name, version, Room()):
                    _set(trial / file, value)
            join = f"echo 0 > {trial}/cgroup.procs"
            return subprocess.run(["/bin/sh", "-c", join], capture_output=True, check=False).returncode == 0
        finally:
            Group((trial,)).remove()
    except OSError:
        return False


def _delegate(folder: Path, wanted: list[str]) -> None:
    enabled = _read(folder / "cgroup.subtree_control").split()
    missing = [f"+{name}" for name in wanted if name not in enabled]
    if missing:
        (folder / "cgroup.subtree_control").write_text(" ".join(missing))


def _set(file: Path, value: str) -> None:
    if "sw" in file.name and not file.exists():
        return  # the kernel does not account swap
    file.write_text(value)


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
