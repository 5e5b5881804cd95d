"""A peer to call, over one connection that is dialled again when it breaks. Promise: a call ends with its answer or a named failure.

A call that was under way when the connection broke is repeated on the next one, so only calls that may be repeated go over a line: all of
ours may, because they carry ids (see protocol.py). How long the line keeps dialling is its patience; how long a call may take is its
caller's clock.
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
from ludus.wire.connection import Connection, Handler

_jitter = random.Random()  # of its own: the global state belongs to environments' authors, and checks watch it
CONNECT_S = 5.0
"""Of one attempt: an address that swallows packets must not hold up everybody."""
PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
MAX_TIMES = 5
"""A call during which the connection broke so often is not repeated again."""
TOO_FAST, TOO_FAST_S = 429, 0.2
"""The status of a call that was not carried out because its client calls too often; and how long to wait then."""
NOT_REACHED = (OSError, TimeoutError, EOFError, WebSocketException)
"""Nobody there, or somebody who died in the middle of the handshake."""
SHUN_S = 30.0
"""A peer that could not be reached is not dialled again for so long, where nobody waits for it in particular."""


class Unreachable(ControllerFailed):
    """Nobody was there to be called."""


class ReconnectingConnection:
    """`patience_s` 0: one attempt, and then none for SHUN_S, because the caller has another way."""

    def __init__(
        self,
        url: str,
        *,
        peer: str,
        token: str = "",
        patience_s: float = 0.0,
        endpoints: Mapping[str, Handler] | None = None,
    ) -> None:
        self.url, self.peer = url, peer
        self._token, self._patience_s, self._endpoints = token, patience_s, endpoints
        self._link: Connection | None = None
        self._dialling: asyncio.Task[Connection] | None = None
        self._running: set[asyncio.Task[str]] = set()
        self._shunned: tuple[float, str] = (0.0, "")
        self._closed = False

    async def call(self, name: str, body: Any = None, *, answer: Any = None) -> Any:
        """Raises Unreachable where nobody could be reached in patience; anything else is the other end's own word."""
        times = 0
        while True:
            link = self._link if self._link is not None and self._link.alive else await self._dialled()
            try:
                return await link.call(name, body, answer=answer)
            except WorkerLost:
                times += 1
                if link.alive or times == MAX_TIMES:  # the other end said so, or this call may well be what breaks it
                    raise
                await asyncio.sleep(PAUSE_S * times)
            except ControllerFailed as error:
                if error.status != TOO_FAST:
                    raise
                await asyncio.sleep(_jitter.uniform(0.5, 1.5) * TOO_FAST_S)

    def tell(self, name: str, body: Any = None) -> None:
        if self._link is not None:
            self._link.tell(name, body)

    async def close(self) -> None:
        self._closed = True
        if self._dialling is not None:
            self._dialling.cancel()
        if self._link is not None:
            await self._link.close()
        if self._running:
            await asyncio.wait(self._running)

    async def _dialled(self) -> Connection:
        """All callers share one attempt, and outlive each other."""
        until, reason = self._shunned
        if self._closed or time.monotonic() < until:
            raise Unreachable(f"{self.peer} cannot be reached: {'this client is closed' if self._closed else reason}")
        if self._dialling is None or self._dialling.done():
            self._dialling = asyncio.create_task(self._dial())
            self._dialling.add_done_callback(_retrieved)
        return await asyncio.shield(self._dialling)

    async def _dial(self) -> Connection:
        give_up, pause_s = time.monotonic() + self._patience_s, PAUSE_S
        while True:
            try:
                return await self._connect()
            except NOT_REACHED as error:
                reason = _explained(error)
                if time.monotonic() + pause_s > give_up:
                    self._shunned = (0.0 if self._patience_s else time.monotonic() + SHUN_S, reason)
                    raise Unreachable(f"{self.peer} cannot be reached at {self.url}: {reason}") from None
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _connect(self) -> Connection:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            connection = await connect(
                self.url,
                additional_headers=headers,
                compression=None,
                max_size=MAX_FRAME_BYTES,
                open_timeout=CONNECT_S,
                proxy=None,
            )
        except InvalidStatus as error:
            if error.response.status_code in (401, 403):
                raise ControllerFailed(_refused(self.peer, token=self._token), status=401) from None
            raise
        self._link = Connection(connection, endpoints=self._endpoints, peer=self.peer)  # type: ignore[arg-type]
        running = asyncio.create_task(self._link.run())
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return self._link


def link_url(url: str) -> str:
    """Where the link of a controller at this http(s) URL is. One that holds a password would be logged, and is refused."""
    scheme, separator, rest = url.rstrip("/").partition("://")
    if "@" in rest:
        raise ConfigError("the controller's URL holds a password; leave it out, and give the token in LUDUS_TOKEN")
    if not separator or scheme not in ("http", "https") or not rest:
        raise ConfigError(f"{url!r} is no controller's URL; expected something like http://127.0.0.1:7100")
    return f"{'wss' if scheme == 'https' else 'ws'}://{rest}/link"


def _explained(error: BaseException) -> str:
    return "no answer to the connection" if isinstance(error, TimeoutError) else describe(error)


def _refused(peer: str, *, token: str) -> str:
    got = "the token it was given is not valid there, or no longer" if token else "no token was given"
    return f"{peer} refuses this client: {got}. Set LUDUS_TOKEN, or name a file that holds the token with controller.token_file"


def _retrieved(task: asyncio.Task[Connection]) -> None:
    if not task.cancelled():
        task.exception()
