"""A hash code for the simulator's things, the same in every load, so that things keep their order.

ScienceWorld's things compare by an id, counted from zero in each load, but have Java's arbitrary
hash, so the order of things in a room, and with it temperatures, would change from load to load.
With one hash for all (`-XX:hashCode=2`) a turn takes twice as long. So their class gets a method:

    public int hashCode() { return (int) uuid; }

It is written into a copy of the package's class file, which Java finds before the original.
"""

from __future__ import annotations

import hashlib
import struct
import zipfile
from pathlib import Path

from ludus.errors import EnvironmentFailed, border
from ludus.worlds.files import write_whole

THING = "scienceworld/struct/EnvObject.class"
_SIZES = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}
"""Bytes of a constant by tag; a text (1) has its own length."""


def patched_classes(jar: Path, *, cache: Path) -> Path:
    """A folder to put before `jar` in the class path, made once for a version of the package."""
    with (
        border(EnvironmentFailed, f"sciworld cannot read {jar}; install scienceworld again"),
        zipfile.ZipFile(jar) as packed,
    ):
        changed = with_hash_code(packed.read(THING))
    folder = cache / f"scienceworld-{hashlib.sha256(changed).hexdigest()[:16]}"
    file = folder / THING
    if not file.is_file() or file.read_bytes() != changed:
        write_whole(file, changed)
    return folder


def with_hash_code(original: bytes) -> bytes:
    """The class file with the method added (JVM specification, chapter 4)."""
    count = _short(original, 8)
    pool_end = _after_constants(original, count=count)
    methods = _after_fields(original, pool_end)
    this_class = _short(original, pool_end + 2)
    texts = b"".join(
        b"\x01" + struct.pack(">H", len(text)) + text for text in (b"hashCode", b"()I", b"Code", b"uuid", b"J")
    )
    name, kind, code, field = count, count + 1, count + 2, count + 6
    constants = texts + struct.pack(">BHH", 12, count + 3, count + 4) + struct.pack(">BHH", 9, this_class, count + 5)
    body = b"\x2a\xb4" + struct.pack(">H", field) + b"\x88\xac"  # aload_0, getfield uuid, l2i, ireturn
    attribute = struct.pack(">HHI", 2, 1, len(body)) + body + struct.pack(">HH", 0, 0)
    method = struct.pack(">HHHHHI", 1, name, kind, 1, code, len(attribute)) + attribute
    return b"".join(
        [
            original[:8], struct.pack(">H", count + 7), original[10:pool_end], constants,
            original[pool_end:methods], struct.pack(">H", _short(original, methods) + 1), method, original[methods + 2 :],
        ]
    )  # fmt: skip


def _after_constants(original: bytes, *, count: int) -> int:
    at, number = 10, 1
    while number < count:
        tag = original[at]
        at += 3 + _short(original, at + 1) if tag == 1 else 1 + _SIZES[tag]
        number += 2 if tag in (5, 6) else 1
    return at


def _after_fields(original: bytes, pool_end: int) -> int:
    """The position of the number of methods."""
    at = pool_end + 8 + 2 * _short(original, pool_end + 6)
    fields, at = _short(original, at), at + 2
    for _ in range(fields):
        attributes, at = _short(original, at + 6), at + 8
        for _ in range(attributes):
            at += 6 + int.from_bytes(original[at + 2 : at + 6])
    return at


def _short(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 2])
