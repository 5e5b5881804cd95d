"""Ids of sessions. Promise: unique across restarts, and every id of ours is a number too, for protocols that want integers.

An id is 48 random bits in hexadecimal: "00c2a91b74fe" is session 836176770302 to an AgentRL worker. It is no secret; the key is.
"""

from __future__ import annotations

import secrets

BITS = 48
"""A 64-bit float, which is what a JSON number may become on its way, holds 53."""


def new_session_id() -> str:
    return f"{secrets.randbits(BITS):0{BITS // 4}x}"


def new_key() -> str:
    return secrets.token_urlsafe(16)


def number_of(session_id: str) -> int:
    return int(session_id, 16)


def session_id_of(number: int) -> str:
    return f"{number:0{BITS // 4}x}"
