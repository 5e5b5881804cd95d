"""Who may call. Promise: a token is good while its line stands in the file and has not expired; deleting the line revokes it at once.

    # name   token              expires (optional, ISO)
    trainer  3bq0…              2027-01-31
    cluster  9fzk…

The name is the client: sessions belong to it, limits count by it. Without a file, LUDUS_TOKEN is the one token, of the client `default`.
Without either, everyone on this machine is `local`, and the controller refuses to listen beyond loopback.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ludus.errors import ConfigError, ControllerFailed

LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Grant:
    name: str
    expires: datetime | None = None


class Tokens:
    """Only digests are kept, so that looking one up takes as long for a near miss as for any other."""

    def __init__(self, *, file: str = "", environment: Mapping[str, str] = os.environ) -> None:
        self._file = Path(file) if file else None
        self._stamp: tuple[int, int, int] | None = None
        self._grants: dict[bytes, Grant] = {}
        if self._file is not None:
            self._grants, self._stamp = _read(self._file), _stamp(self._file)
        elif token := environment.get("LUDUS_TOKEN", ""):
            self._grants = {_digest(token): Grant("default")}

    @property
    def required(self) -> bool:
        return self._file is not None or bool(self._grants)

    def check_host(self, host: str) -> None:
        if not self.required and not is_loopback(host):
            raise ConfigError(
                f"the controller would listen on {host} without tokens; give --tokens FILE or set LUDUS_TOKEN, or listen on 127.0.0.1"
            )

    def client(self, authorization: str | None, *, now: datetime | None = None) -> str:
        """The client's name, from an Authorization header."""
        if not self.required:
            return LOCAL
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise ControllerFailed("who are you? Send `Authorization: Bearer TOKEN`", status=401)
        grant = self._current().get(_digest(token.strip()))
        if grant is None:
            raise ControllerFailed("this token is not known here; it may have been revoked", status=401)
        if grant.expires is not None and (now or datetime.now(UTC)) >= grant.expires:
            raise ControllerFailed(f"the token of {grant.name!r} expired at {grant.expires.isoformat()}", status=401)
        return grant.name

    def _current(self) -> dict[bytes, Grant]:
        """The file as it is now. One that has become unreadable lets nobody in: better than a revoked token that still works."""
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
        raise ConfigError(f"tokens file {file} cannot be read: {error}") from None
    grants: dict[bytes, Grant] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) not in (2, 3):
            raise ConfigError(
                f"{file} line {number} has {len(words)} words; expected `name token` or `name token expires`"
            )
        grants[_digest(words[1])] = Grant(
            words[0], _expiry(words[2], where=f"{file} line {number}") if words[2:] else None
        )
    return grants


def _expiry(text: str, *, where: str) -> datetime:
    try:
        expires = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{where}: {text!r} is no ISO date such as 2027-01-31 or 2027-01-31T12:00+00:00") from None
    return expires if expires.tzinfo else expires.replace(tzinfo=UTC)
