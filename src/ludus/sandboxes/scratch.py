"""Scratch folders for programs that we start, e.g. a browser's profile. Promise: none stays for
long after its process.

`close` removes a folder. If its process is killed first, the next process that makes a scratch
folder removes it, with everything else that has no live owner (reaper.py).
"""

from __future__ import annotations

import atexit
import os
import shutil
import threading
from pathlib import Path

from ludus.sandboxes import reaper
from ludus.sandboxes.owner import FOLDERS, Owner, state_folder

_owners: dict[int, Owner] = {}
"""By pid: a forked child does not hold its parent's lock."""
_lock = threading.Lock()


class Scratch:
    """A new, empty folder that only this user can read."""

    def __init__(self) -> None:
        owner = _owner()
        self.path: Path = owner.state / FOLDERS / owner.label().id
        self.path.mkdir(mode=0o700)

    def close(self) -> None:
        """Idempotent. The next sweep removes what another program still writes there."""
        shutil.rmtree(self.path, ignore_errors=True)


def _owner() -> Owner:
    with _lock:
        if os.getpid() not in _owners:
            owner = Owner(state_folder())
            reaper.sweep(owner.state)
            _owners[os.getpid()] = owner
            atexit.register(owner.release)
        return _owners[os.getpid()]
