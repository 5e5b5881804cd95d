"""Removes what dead owners left. Promise: even after `kill -9` of everything, the next process that
uses sandboxes here removes it all.

Namespaces end with their owner (namespace_init.py). Containers, control groups, folders and plain
processes may stay. Each carries an id that names its owner; if that owner is dead (owner.py), they
are removed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Set
from pathlib import Path

from ludus.errors import SandboxFailed
from ludus.sandboxes import cgroups
from ludus.sandboxes.docker_api import DockerApi
from ludus.sandboxes.marks import kill_marked
from ludus.sandboxes.owner import FOLDERS, LABELS, OWNERS, drop_label, home_of, is_alive, owner_of


def sweep(
    state: Path, *, own: str = "", live: Callable[[], Set[str]] = frozenset, api: DockerApi | None = None
) -> list[str]:
    """What was removed. Of the caller's `own` sandboxes, all but the `live` ids are removed."""
    home = home_of(state)

    def orphan(sandbox_id: str) -> bool:
        owner = owner_of(sandbox_id)
        if owner == own:
            return sandbox_id not in live()
        return not is_alive(state, owner)

    removed = [
        *_containers(home, orphan, api),
        *_processes(home, orphan, state),
        *_groups(home, orphan),
        *_folders(state, orphan),
    ]
    for file in (state / OWNERS).glob(f"{home}-*"):
        if not is_alive(state, file.name):
            file.unlink(missing_ok=True)
            removed.append(f"owner {file.name}")
    return removed


def _containers(home: str, orphan: Callable[[str], bool], api: DockerApi | None) -> list[str]:
    if api is None:
        return []
    removed = []
    for found in api.containers(f"ludus.home={home}"):
        sandbox_id = str(found.get("Labels", {}).get("ludus.id", ""))
        if orphan(sandbox_id):
            try:
                api.remove(str(found["Id"]))
                removed.append(f"container {sandbox_id}")
            except SandboxFailed:
                pass  # the next sweep tries again
    return removed


def _processes(home: str, orphan: Callable[[str], bool], state: Path) -> list[str]:
    """A mark is the id of a sandbox or, for an init process, of its owner."""

    def wanted(mark: str) -> bool:
        if not mark.startswith(f"{home}-"):
            return False
        return orphan(mark) if mark.count("-") == 2 else not is_alive(state, mark)

    number = kill_marked(wanted)
    return [f"{number} processes"] if number else []


def _groups(home: str, orphan: Callable[[str], bool]) -> list[str]:
    found = cgroups.leftovers(f"{home}-").items()
    return [f"control group {name}" for name, group in found if orphan(name) and group.remove()]


def _folders(state: Path, orphan: Callable[[str], bool]) -> list[str]:
    removed = []
    for folder in (state / FOLDERS).glob("*"):
        if orphan(folder.name):
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(f"folder {folder.name}")
    for label in (state / LABELS).glob("*"):
        if orphan(label.name):
            drop_label(state, label.name)
    return removed
