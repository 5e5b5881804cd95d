"""Messages between two processes of a run, over a socket. Promise: they arrive whole and in order, those of one turn of
the event loop together.

They are pickled: it is for processes that one of the two has started.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
from contextlib import suppress
from typing import Any

_SIZE = 8
"""Bytes that say how many follow."""
_AT_ONCE = 2**20
"""Bytes that are read before somebody asks for them; a message may have more."""


class Pipe:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._outbox: list[bytes] = []

    @classmethod
    async def over(cls, end: socket.socket) -> Pipe:
        return cls(*await asyncio.open_unix_connection(sock=end, limit=_AT_ONCE))

    def send(self, message: Any) -> None:
        """Waits for nothing; what cannot be pickled raises here. To an end that is gone nothing is sent, and nothing is said about it:
        `receive` does."""
        self._outbox.append(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))
        if len(self._outbox) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    async def receive(self) -> list[Any]:
        """The next messages; EOFError when the other end is gone."""
        try:
            size = int.from_bytes(await self._reader.readexactly(_SIZE), "little")
            messages: list[bytes] = pickle.loads(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            raise EOFError from None
        return [pickle.loads(message) for message in messages]

    def abort(self) -> None:
        """Closes this end; what was not sent yet is not sent."""
        self._writer.transport.abort()

    async def close(self) -> None:
        self._flush()
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    def _flush(self) -> None:
        messages, self._outbox = self._outbox, []
        if messages and not self._writer.is_closing():
            data = pickle.dumps(messages, protocol=pickle.HIGHEST_PROTOCOL)
            self._writer.writelines((len(data).to_bytes(_SIZE, "little"), data))
