"""Access tokens of clients. Promise: deleting a token's line from the file revokes it at once.

    # name   access token       expires (optional, ISO)
    trainer  3bq0…              2027-01-31
    cluster  9fzk…

The name is the client: it owns its sessions, and limits apply to it. Without a file, LUDUS_TOKEN is
the only access token, of the client `default`. Without either, every caller on this machine is the
client `local`, and the controller refuses to listen beyond loopback.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from ludus.errors import ConfigError, ControllerFailed

LOCAL = "local"
Grant = tuple[str, datetime | None]
"""A client's name, and when its access token expires."""


class AccessTokens:
    """Keeps digests only, so that looking up a near miss takes as long as any other."""

    def __init__(self, *, file: str = "", environment: Mapping[str, str] = os.environ) -> None:
        self._file = Path(file) if file else None
        self._stamp: tuple[int, int, int] | None = None
        self._grants: dict[bytes, Grant] = {}
        if self._file is not None:
            self._grants, self._stamp = _read(self._file), _stamp(self._file)
        elif token := environment.get("LUDUS_TOKEN", ""):
            self._grants = {_digest(token): ("default", None)}

    @property
    def required(self) -> bool:
        return self._file is not None or bool(self._grants)

    def check_host(self, host: str) -> None:
        if not self.required and not is_loopback(host):
            raise ConfigError(
                f"the controller would listen on {host} without access tokens; give --tokens FILE, set LUDUS_TOKEN, "
                "or listen on 127.0.0.1"
            )

    def client(self, authorization: str | None, *, now: datetime | None = None) -> str:
        """The name of the client that sent this Authorization header."""
        if not self.required:
            return LOCAL
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise ControllerFailed("no access token; send the header `Authorization: Bearer TOKEN`", status=401)
        grant = self._current().get(_digest(token.strip()))
        if grant is None:
            raise ControllerFailed("this access token is unknown; it may have been revoked", status=401)
        name, expires = grant
        if expires is not None and (now or datetime.now(UTC)) >= expires:
            raise ControllerFailed(f"the access token of {name!r} expired at {expires.isoformat()}", status=401)
        return name

    def _current(self) -> dict[bytes, Grant]:
        """The grants in the file now; none if it is unreadable, so that no revoked token works."""
        if self._file is not None and (stamp := _stamp(self._file)) != self._stamp:
            self._stamp, self._grants = stamp, {}
            self._grants = _read(self._file)
        return self._grants


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _read(file: Path) -> dict[bytes, Grant]:
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the access token file {file} cannot be read: {error}") from None
    grants: dict[bytes, Grant] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split("#")[0].split()
        where = f"{file} line {number}"
        if len(words) not in (0, 2, 3):
            raise ConfigError(f"{where} has {len(words)} words; expected `name token` or `name token expires`")
        if words:
            grants[_digest(words[1])] = words[0], _expiry(words[2], where=where) if words[2:] else None
    return grants


def _expiry(text: str, *, where: str) -> datetime:
    try:
        expires = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{where}: {text!r} is not an ISO date such as 2027-01-31 or 2027-01-31T12:00+00:00"
        ) from None
    return expires if expires.tzinfo else expires.replace(tzinfo=UTC)
