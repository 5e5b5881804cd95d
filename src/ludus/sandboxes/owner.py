"""Who owns a sandbox. Promise: an owner that dies, however it dies, is known to be dead at once, and nobody else is taken for it.

A owner is a locked file in the state folder: the system drops the lock when the process ends, so neither a reused pid nor a clock that
jumps can fool the reaper. Every sandbox's id begins with its owner's, and every owner's with its home (machine and state folder), so that
a reaper judges only what it can know about.

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

_held: dict[str, IO[str]] = {}
"""Of this process. To open or close such a file once more would drop its lock (POSIX locks are the process's), so that is never done."""


def state_folder() -> Path:
    """LUDUS_STATE, or one per user in the folder for temporary files."""
    given = os.environ.get("LUDUS_STATE")
    folder = Path(given) if given else Path(tempfile.gettempdir()) / f"ludus-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if not given and (found.st_uid != os.getuid() or found.st_mode & 0o022):
        raise SandboxFailed(
            f"{folder} belongs to somebody else or may be written by others; set LUDUS_STATE to a folder of yours"
        )
    return folder.resolve()


def home_of(state: Path) -> str:
    return hashlib.sha256(f"{socket.gethostname()}:{state}".encode()).hexdigest()[:8]


class Owner:
    """Held from here to `release`, or to the end of the process."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.home = home_of(state)
        self.id = f"{self.home}-{secrets.token_hex(4)}"
        self._numbers = itertools.count(1)
        for name in ("leases", "labels", "folders"):
            (state / name).mkdir(exist_ok=True)
        self._claim()

    def _claim(self) -> None:
        """Locked before it has its name: no reaper ever sees it unlocked."""
        hidden = self.state / "leases" / f".{self.id}"
        file = hidden.open("w")
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.write(json.dumps({"pid": os.getpid()}))
        file.flush()
        _held[self.id] = file
        hidden.rename(self.state / "leases" / self.id)

    def label(self, *, run: str, session: str) -> Label:
        return Label(id=f"{self.id}-{next(self._numbers)}", owner=self.id, run=run, session=session)

    def release(self) -> None:
        if self.id in _held:
            (self.state / "leases" / self.id).unlink(missing_ok=True)
            _held.pop(self.id).close()


def is_alive(state: Path, owner: str) -> bool:
    if owner in _held:
        return True
    try:
        with (state / "leases" / owner).open("r+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except OSError:  # locked
        return True


def owner_of(sandbox_id: str) -> str:
    return sandbox_id.rpartition("-")[0]


def write_label(state: Path, label: Label, *, kind: Kind) -> None:
    told = {"kind": kind, "run": label.run, "session": label.session, "owner": label.owner}
    (state / "labels" / label.id).write_text(json.dumps(told))


def drop_label(state: Path, sandbox_id: str) -> None:
    (state / "labels" / sandbox_id).unlink(missing_ok=True)
