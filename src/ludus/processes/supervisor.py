"""Groups of processes that belong to this one. Promise: when this process is gone, however it went, so are they and all they started.

A keeper waits at a pipe whose other end only this process holds. `kill -9` closes it too, and then the keeper kills the groups it knows.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

_KEEPER = """
groups=' '
while read -r sign group; do
  case $sign in
    +) groups="$groups$group " ;;
    -) groups="${groups%% $group *} ${groups#* $group }" ;;
  esac
done
for group in $groups; do kill -s KILL -- "-$group"; done
"""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Supervisor:
    """Knows the groups that must not be left behind."""

    def __init__(self) -> None:
        self._shell: subprocess.Popen[bytes] | None = None
        self._groups: set[int] = set()

    def add(self, group: int) -> None:
        if self._shell is None or self._shell.poll() is not None:
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", _KEEPER],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C in the terminal is not for it
            )
            for known in self._groups:
                self._tell("+", known)
        self._groups.add(group)
        self._tell("+", group)

    def kill(self, group: int) -> None:
        """Ends the group and forgets it. One that was forgotten is let be: its number may be somebody else's by now."""
        if group not in self._groups:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
        self._groups.discard(group)
        self._tell("-", group)

    def close(self) -> None:
        for group in list(self._groups):
            self.kill(group)
        if self._shell is not None:
            self._shell.communicate()
            self._shell = None

    def _tell(self, sign: str, group: int) -> None:
        assert self._shell is not None
        assert self._shell.stdin is not None
        with suppress(BrokenPipeError):  # somebody killed it; the next `add` starts another
            self._shell.stdin.write(f"{sign} {group}\n".encode())
            self._shell.stdin.flush()


def memory_of(pid: int) -> int:
    """Resident bytes of a process and its descendants; 0 where the system does not say (it must be Linux)."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = [
            int(word) for file in Path(f"/proc/{pid}/task").glob("*/children") for word in file.read_text().split()
        ]
    except (OSError, IndexError):  # gone meanwhile
        return 0
    return pages * _PAGE_BYTES + sum(memory_of(child) for child in children)


def obituary(returncode: int | None) -> str:
    """How a process ended, in words."""
    if returncode is None:
        return "its process closed the connection"
    if returncode < 0:
        hint = "; out of memory?" if returncode == -signal.SIGKILL else ""
        return f"its process was killed by {signal.Signals(-returncode).name}{hint}"
    return f"its process ended with exit code {returncode}"
