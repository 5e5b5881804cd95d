"""Finds a sandbox's processes by an environment variable, which forks and new groups keep."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

MARK = "LUDUS_SANDBOX"


def kill_marked(wanted: Callable[[str], bool]) -> int:
    """Kills every process whose mark is wanted, and returns their number."""
    number = 0
    for _ in range(10):  # a process forked meanwhile is found in the next round
        found = list(_marked(wanted))
        for pidfd in found:
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                number += 1
            except ProcessLookupError:
                pass
            finally:
                os.close(pidfd)
        if not found:
            break
    return number


def _marked(wanted: Callable[[str], bool]) -> Iterator[int]:
    """pidfds of the processes whose mark is wanted."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            pidfd = os.pidfd_open(int(folder.name))  # first, so that a reused pid is not killed
        except (OSError, AttributeError):
            continue
        mark = _mark_of(folder)
        if mark is not None and wanted(mark) and int(folder.name) != os.getpid():
            yield pidfd
        else:
            os.close(pidfd)


def _mark_of(folder: Path) -> str | None:
    """None for a zombie too: its environment is gone."""
    try:
        variables = (folder / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    prefix = f"{MARK}=".encode()
    return next((each.removeprefix(prefix).decode() for each in variables if each.startswith(prefix)), None)
