"""Folders for what a program under us must write to disk, a browser's profile for instance. Promise: none outlives its process for long.

A folder is removed when it is closed. Where its process is killed before, the next process that asks for one removes it, as it does with
everything else that no live owner owns (reaper.py).
"""

from __future__ import annotations

import atexit
import os
import shutil
import threading
from pathlib import Path

from ludus.sandboxes import reaper
from ludus.sandboxes.owner import Owner, state_folder

_owners: dict[int, Owner] = {}
"""One for each process: a forked child does not hold its parent's."""
_lock = threading.Lock()


class Scratch:
    """A new, empty folder of the user's own."""

    def __init__(self) -> None:
        owner = _owner()
        self.path: Path = owner.state / "folders" / owner.label(run="", session="").id
        self.path.mkdir(mode=0o700)

    def close(self) -> None:
        """Safe to call twice. What another program still writes there, the next sweep takes."""
        shutil.rmtree(self.path, ignore_errors=True)


def _owner() -> Owner:
    with _lock:
        if os.getpid() not in _owners:
            owner = Owner(state_folder())
            reaper.sweep(owner.state)
            _owners[os.getpid()] = owner
            atexit.register(owner.release)
        return _owners[os.getpid()]
