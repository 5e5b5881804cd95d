"""Limits of size (413, the request is not read) and of rate (429)."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.responses import Response

from ludus.errors import ControllerFailed
from ludus.wire.codec import encode, fault_of

MAX_CLIENTS = 10_000
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Rates:
    """A bucket per client: `max_rate` calls per second, bursts of one second's worth."""

    def __init__(self, max_rate: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_rate, self._clock = max_rate, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> None:
        if not self._max_rate:
            return
        now = self._clock()
        full = max(1.0, self._max_rate)
        calls, then = self._buckets.get(client, (full, now))
        calls = min(full, calls + (now - then) * self._max_rate)
        if calls < 1:
            wait_s = (1 - calls) / self._max_rate
            raise ControllerFailed(
                f"client {client!r} made more than {self._max_rate:g} calls per second; wait {wait_s:.2g} s", status=429
            )
        self._buckets[client] = calls - 1, now
        self._buckets.move_to_end(client)
        if len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)


class SizeLimit:
    """ASGI middleware: checks Content-Length or, without one, counts bytes."""

    def __init__(self, app: Callable[..., Awaitable[None]], *, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            announced = dict(scope["headers"]).get(b"content-length", b"0")
            if not announced.isdigit() or int(announced) > self._max_bytes:
                body = encode(fault_of(self._too_large))
                refusal = Response(body, 413, headers={"Connection": "close"}, media_type="application/json")
                await refusal(scope, receive, send)
                return
            receive = self._counted(receive)
        await self._app(scope, receive, send)

    def _counted(self, receive: Receive) -> Receive:
        total = 0

        async def counted() -> Message:
            nonlocal total
            message = await receive()
            total += len(message.get("body", b""))
            if total > self._max_bytes:
                raise self._too_large
            return message

        return counted

    @property
    def _too_large(self) -> ControllerFailed:
        return ControllerFailed(f"the request is larger than {self._max_bytes} bytes", status=413)
