"""Which process owns a sandbox. Promise: an owner that ended, in whatever way, is known to be dead
at once.

An owner is a locked file in the state folder. The system drops the lock when the process ends, so
neither a reused pid nor a clock that jumps misleads the reaper. A sandbox's id begins with its
owner's id, and that with its home (machine and state folder): a reaper judges only the sandboxes of
its own home.

    home-owner-number      3f9c01ab-7d0e5521-4
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import secrets
import socket
import tempfile
from pathlib import Path
from typing import IO

from ludus.errors import SandboxFailed
from ludus.sandboxes.sandbox import Kind, Label

OWNERS, LABELS, FOLDERS = "leases", "labels", "folders"
"""Subfolders of the state folder. Their names stay: processes of older versions may share it."""
_held: dict[str, IO[str]] = {}
"""Locked files of this process. POSIX locks belong to the process, so opening and closing such a
file once more would drop its lock."""


def state_folder() -> Path:
    """LUDUS_STATE, or a folder per user in the system's folder for temporary files."""
    given = os.environ.get("LUDUS_STATE")
    folder = Path(given) if given else Path(tempfile.gettempdir()) / f"ludus-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if not given and (found.st_uid != os.getuid() or found.st_mode & 0o022):
        raise SandboxFailed(f"{folder} belongs to another user or is writable by others; set LUDUS_STATE to your own")
    return folder.resolve()


def home_of(state: Path) -> str:
    return hashlib.sha256(f"{socket.gethostname()}:{state}".encode()).hexdigest()[:8]


class Owner:
    """Held until `release`, or until the process ends."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.id = f"{home_of(state)}-{secrets.token_hex(4)}"
        self._numbers = itertools.count(1)
        for name in (OWNERS, LABELS, FOLDERS):
            (state / name).mkdir(exist_ok=True)
        self._lock()

    def _lock(self) -> None:
        """Locks the file before it gets its name, so that no reaper sees it unlocked."""
        hidden = self.state / OWNERS / f".{self.id}"
        file = hidden.open("w")
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.write(json.dumps({"pid": os.getpid()}))
        file.flush()
        _held[self.id] = file
        hidden.rename(self.state / OWNERS / self.id)

    def label(self, *, run: str = "") -> Label:
        return Label(id=f"{self.id}-{next(self._numbers)}", owner=self.id, run=run)

    def release(self) -> None:
        if self.id in _held:
            (self.state / OWNERS / self.id).unlink(missing_ok=True)
            _held.pop(self.id).close()


def is_alive(state: Path, owner: str) -> bool:
    if owner in _held:
        return True
    try:
        with (state / OWNERS / owner).open("r+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except OSError:  # locked
        return True


def owner_of(sandbox_id: str) -> str:
    return sandbox_id.rpartition("-")[0]


def write_label(state: Path, label: Label, *, kind: Kind) -> None:
    fields = {"kind": kind, "run": label.run, "session": label.session, "owner": label.owner}
    (state / LABELS / label.id).write_text(json.dumps(fields))


def drop_label(state: Path, sandbox_id: str) -> None:
    (state / LABELS / sandbox_id).unlink(missing_ok=True)
