"""A connection that is dialled again when it breaks. Promise: a call ends with an answer or a
failure.

A call that was in flight when the connection broke is repeated on the next one, so it must be
safe to repeat: all of ours are, because they carry ids (controller/records.py). `patience_s`
limits the dialling; how long a call may take is up to its caller.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus, WebSocketException

from ludus.errors import ConfigError, ControllerFailed, WorkerLost, describe
from ludus.wire.codec import MAX_FRAME_BYTES
from ludus.wire.connection import Connection, Handler, detached

jitter = random.Random()  # not the global state, which belongs to authors and is watched by checks
CONNECT_S = 5.0
"""For one attempt: an address that drops packets must not hold up everybody."""
PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
MAX_TIMES = 5
"""A call is given up after its connection broke this often."""
TOO_FAST, TOO_FAST_S = 429, 0.2
"""Status of a call that was refused for its client's rate, and the mean pause before the next."""
NOT_REACHED = (OSError, TimeoutError, EOFError, WebSocketException)
SHUN_S = 30.0
"""With `patience_s` 0, a peer that could not be reached is not dialled again for this long."""


class Unreachable(ControllerFailed):
    """The peer could not be connected to."""


class ReconnectingConnection:
    """`patience_s` 0: one attempt, then none for SHUN_S, for callers that have another way."""

    def __init__(
        self,
        url: str,
        *,
        peer: str,
        token: str = "",
        patience_s: float = 0.0,
        handlers: Mapping[str, Handler] | None = None,
    ) -> None:
        self.url, self.peer = url, peer
        self._token, self._patience_s, self._handlers = token, patience_s, handlers
        self._connection: Connection | None = None
        self._dialling: asyncio.Task[Connection] | None = None
        self._running: set[asyncio.Task[str]] = set()
        self._shunned: tuple[float, str] = (0.0, "")
        self._closed = False

    async def call(self, name: str, body: Any = None, *, answer: Any = None) -> Any:
        """Raises Unreachable after `patience_s`; any other failure is the other end's."""
        times = 0
        while True:
            connection = self._connection
            if connection is None or not connection.alive:
                connection = await self._dialled()
            try:
                return await connection.call(name, body, answer=answer)
            except WorkerLost:
                times += 1
                if connection.alive or times == MAX_TIMES:  # the other end's own answer, or this call is what breaks it
                    raise
                await asyncio.sleep(PAUSE_S * times)
            except ControllerFailed as error:
                if error.status != TOO_FAST:
                    raise
                await asyncio.sleep(jitter.uniform(0.5, 1.5) * TOO_FAST_S)

    def tell(self, name: str, body: Any = None) -> None:
        if self._connection is not None:
            self._connection.tell(name, body)

    async def close(self) -> None:
        self._closed = True
        if self._dialling is not None:
            self._dialling.cancel()
        if self._connection is not None:
            await self._connection.close()
        if self._running:
            await asyncio.wait(self._running)

    async def _dialled(self) -> Connection:
        """All callers share one attempt; it survives the cancellation of any of them."""
        until, reason = self._shunned
        if self._closed or time.monotonic() < until:
            raise Unreachable(f"{self.peer} cannot be reached: {'this client is closed' if self._closed else reason}")
        if self._dialling is None or self._dialling.done():
            self._dialling = detached(self._dial())
        return await asyncio.shield(self._dialling)

    async def _dial(self) -> Connection:
        give_up, pause_s = time.monotonic() + self._patience_s, PAUSE_S
        while True:
            try:
                return await self._connect()
            except NOT_REACHED as error:
                reason = "no answer to the connection" if isinstance(error, TimeoutError) else describe(error)
                if time.monotonic() + pause_s > give_up:
                    self._shunned = (0.0 if self._patience_s else time.monotonic() + SHUN_S, reason)
                    raise Unreachable(f"{self.peer} cannot be reached at {self.url}: {reason}") from None
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _connect(self) -> Connection:
        try:
            websocket = await websocket_to(self.url, token=self._token)
        except InvalidStatus as error:
            if error.response.status_code in (401, 403):
                raise ControllerFailed(_refused(self.peer, token=self._token), status=401) from None
            raise
        self._connection = Connection(websocket, handlers=self._handlers, peer=self.peer)
        running = asyncio.create_task(self._connection.run())
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return self._connection


def websocket_to(url: str, *, token: str, **options: Any) -> connect:
    """A websocket to a controller or worker, to be awaited or entered."""
    return connect(
        url,
        additional_headers={"Authorization": f"Bearer {token}"} if token else {},
        compression=None,
        max_size=MAX_FRAME_BYTES,
        open_timeout=CONNECT_S,
        proxy=None,
        **options,
    )


def connection_url(url: str) -> str:
    """A controller's websocket. A URL with a password is refused, because it would be logged."""
    scheme, separator, rest = url.rstrip("/").partition("://")
    if "@" in rest:
        raise ConfigError("the controller's URL holds a password; leave it out and set LUDUS_TOKEN to the access token")
    if not separator or scheme not in ("http", "https") or not rest:
        raise ConfigError(f"{url!r} is not a controller's URL; expected something like http://127.0.0.1:7100")
    return f"{'wss' if scheme == 'https' else 'ws'}://{rest}/link"


def _refused(peer: str, *, token: str) -> str:
    got = "the access token is not valid there, or no longer" if token else "no access token was given"
    return (
        f"{peer} refuses this client: {got}. Set LUDUS_TOKEN, or name a file that holds it with controller.token_file"
    )
