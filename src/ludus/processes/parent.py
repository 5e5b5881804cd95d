"""Inside a process that a Supervisor started: it ends with its parent, and has a connection to it.

A process with a connection is started with two more arguments: the socket's file descriptor and
the parent's pid.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Asks Linux to kill this process when `parent` ends, even if a call holds the interpreter."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(0)


def parent_socket(arguments: list[str]) -> socket.socket:
    """The socket to the parent, with which this process ends from now on. `arguments`: sys.argv."""
    fd, parent = map(int, arguments[-2:])
    die_with(parent)
    os.set_inheritable(fd, False)  # else what this process starts would keep the connection open
    return socket.socket(fileno=fd)
