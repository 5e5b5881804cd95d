"""Ports for programs that cannot choose their own. Promise: the system gives them to nobody else before the program listens."""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOWEST = 10_000
_given: set[int] = set()


def free_port() -> int:
    """Below the range from which the system gives ports: one from there may be somebody's own by the time it is used."""
    ports = random.SystemRandom()
    while True:
        port = ports.randrange(LOWEST, max(_first_of_the_system(), 2 * LOWEST))
        if port not in _given and _is_free(port):
            _given.add(port)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _first_of_the_system() -> int:
    file = Path("/proc/sys/net/ipv4/ip_local_port_range")
    return int(file.read_text().split()[0]) if file.exists() else 32_768
