"""Frames over a stream socket, such as one end of a socketpair: each after its length."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Self

from ludus.wire.codec import MAX_FRAME_BYTES

_LENGTH = struct.Struct("!I")
_READ_AHEAD_BYTES = 2**20


class StreamTransport:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def over(cls, end: socket.socket) -> Self:
        return cls(*await asyncio.open_connection(sock=end, limit=_READ_AHEAD_BYTES))

    async def send(self, data: bytes) -> None:
        self._writer.writelines((_LENGTH.pack(len(data)), data))
        await self._writer.drain()

    async def recv(self) -> bytes:
        (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
        if length > MAX_FRAME_BYTES:
            raise ValueError(f"a message of {length} bytes; at most {MAX_FRAME_BYTES} are accepted")
        return await self._reader.readexactly(length)

    async def close(self) -> None:
        self._writer.close()
