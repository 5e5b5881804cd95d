"""One connection that carries many calls, both ways. Promise: each ends with its answer, a named failure, or WorkerLost; never in silence.

Whoever has something to say puts it into the outbox; one task empties the outbox into a frame as often as the connection takes it. So a
lone call leaves at once, and under load dozens share a frame. Either end may call the other; what may be called is a closed table.

    call() ──▶ outbox ──(frame)──▶ connection ──(frame)──▶ read() ──▶ serve in a task ──▶ outbox ──▶ ...
      └─ waits in `_waiting` by id ◀──────────────── answer ◀───────────────────────────────────────┘
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from ludus.errors import ConfigError, ControllerFailed, WorkerLost, nearest
from ludus.wire.codec import MAX_FRAME_BYTES, Envelope, Fault, decode, decode_frame, encode, error_of, fault_of

T = TypeVar("T")
MAX_ENVELOPES = 32
"""Of one frame: the other end should begin to work before everything has been written. With 512, a thousand sessions make the two ends
wait for each other in turn, and there are 40 % fewer turns per second."""
FRAME_BYTES = 2**20
"""A frame is full with so much, whatever the number of envelopes."""
MAX_BODY_BYTES = MAX_FRAME_BYTES - 2**20


class Transport(Protocol):
    """What a link needs of a websocket; messages are whole."""

    async def send(self, data: bytes) -> None: ...

    async def recv(self) -> bytes | str:
        """Raises when the connection is over."""
        ...

    async def close(self) -> None: ...


class Handler:
    """Something callable from the other end: how to read its body, and the function that answers."""

    __slots__ = ("body", "function")

    def __init__(self, body: Any, function: Callable[[Any], Any]) -> None:
        self.body, self.function = body, function


class Connection:
    """`endpoints` maps the names the other end may call to (type of the body, function); functions may be async or plain.

    A plain function must be quick: it runs on the loop, before the next envelope is read. What an async one does ends with the link; a
    future that a function returns is answered from and left alone.
    """

    def __init__(
        self, connection: Transport, *, endpoints: Mapping[str, Handler] | None = None, peer: str = "the other end"
    ) -> None:
        self._connection = connection
        self._endpoints = dict(endpoints or {})
        self.peer = peer
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._outbox: list[bytes] = []
        self._has_mail = asyncio.Event()
        self._serving: set[asyncio.Future[Any]] = set()
        self._over: str | None = None
        self._closed = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self._over is None

    async def call(self, name: str, body: Any = None, *, answer: type[T] | Any = None) -> T | Any:
        """Calls the other end and waits for its answer, read as `answer`. A cancelled caller just stops waiting."""
        if self._over is not None:
            raise WorkerLost(f"{self.peer} cannot be called any more: {self._over}")
        number = next(self._ids)
        future: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            self._post(Envelope(id=number, call=name, body=_packed(body)))
            raw = await future
        finally:
            self._waiting.pop(number, None)
        return None if answer is None else decode(raw, answer)

    def tell(self, name: str, body: Any = None) -> None:
        """Calls the other end without waiting; nothing comes back, not even a failure."""
        if self._over is None:
            self._post(Envelope(call=name, body=_packed(body)))

    async def run(self) -> str:
        """Reads until the connection is over, and says why it is. Owns the writing task; whoever makes a link runs it."""
        self._writer = asyncio.create_task(self._write())
        reason = "the connection was closed"
        try:
            while True:
                self._read(await self._connection.recv())
                await asyncio.sleep(0)  # what was read is worked on, and answered, before the next frame is looked at
        except asyncio.CancelledError:
            reason = "the link was closed here"
            raise
        except ConfigError as error:
            reason = str(error)
        except Exception as error:  # every websocket library has its own way to say that it is over
            reason = f"the connection ended ({type(error).__name__}: {error})".replace("\n", " ")
        finally:
            await self._end(reason)
        return reason

    async def close(self) -> None:
        await self._connection.close()

    async def wait_closed(self) -> None:
        await self._closed.wait()

    # -------------------------------------------------------------------------------------------- writing

    def _post(self, envelope: Envelope) -> None:
        self._outbox.append(encode(envelope))
        self._has_mail.set()

    async def _write(self) -> None:
        try:
            while True:
                await self._has_mail.wait()
                count = _frameful(self._outbox)
                mail, self._outbox = self._outbox[:count], self._outbox[count:]
                if not self._outbox:
                    self._has_mail.clear()
                await self._connection.send(b"[" + b",".join(mail) + b"]")
        except asyncio.CancelledError:
            raise
        except Exception:
            await self._connection.close()  # `run` hears of it and ends everything

    # -------------------------------------------------------------------------------------------- reading

    def _read(self, frame: bytes | str) -> None:
        for envelope in decode_frame(frame):
            if envelope.call:
                self._serve(envelope)
            elif (future := self._waiting.get(envelope.id)) is not None and not future.done():
                if envelope.error is not None:
                    future.set_exception(error_of(envelope.error))
                else:
                    future.set_result(envelope.body)

    def _serve(self, envelope: Envelope) -> None:
        try:
            endpoint = self._endpoints.get(envelope.call)
            if endpoint is None:
                known = sorted(self._endpoints)
                raise ControllerFailed(
                    f"no such call {envelope.call!r}.{nearest(envelope.call, known)} Known: {', '.join(known)}.",
                    status=404,
                )
            result = endpoint.function(None if endpoint.body is None else decode(envelope.body, endpoint.body))
        except Exception as error:
            self._answer(envelope.id, error=fault_of(error))
            return
        if not inspect.isawaitable(result):
            self._answer(envelope.id, body=result)
            return
        if not isinstance(result, asyncio.Future):
            result = asyncio.ensure_future(result)
            self._serving.add(result)
            result.add_done_callback(self._serving.discard)
        result.add_done_callback(partial(self._answer_from, envelope.id))

    def _answer_from(self, number: int, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            self._answer(number, error=Fault("WorkerLost", "the call was cancelled on the other end", 503))
        elif (error := future.exception()) is not None:
            self._answer(number, error=fault_of(error))
        else:
            self._answer(number, body=future.result())

    def _answer(self, number: int, *, body: Any = None, error: Fault | None = None) -> None:
        if not number or self._over is not None:
            return
        if error is not None:
            self._post(Envelope(id=number, error=error))
            return
        try:
            self._post(Envelope(id=number, body=_packed(body)))
        except Exception as failure:  # something that is not JSON, or too much: the caller must hear of it
            self._post(Envelope(id=number, error=fault_of(failure)))

    async def _end(self, reason: str) -> None:
        self._over = reason
        if self._writer is not None:
            self._writer.cancel()
        for task in list(self._serving):
            task.cancel()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(WorkerLost(f"{self.peer} is lost: {reason}"))
                future.exception()  # its caller may be gone already
        self._waiting.clear()
        self._closed.set()


def _packed(body: Any) -> msgspec.Raw:
    packed = encode(body)
    if len(packed) > MAX_BODY_BYTES:  # it would end the connection, and with it everybody else's calls
        size, most = len(packed) / 2**20, MAX_BODY_BYTES / 2**20
        raise ControllerFailed(f"a message of {size:.0f} MiB cannot be sent; at most {most:.0f} MiB", status=413)
    return msgspec.Raw(packed)


def _frameful(envelopes: list[bytes]) -> int:
    """How many of these make the next frame: at least one, and no more than the other end should wait for."""
    size = 0
    for count, envelope in enumerate(envelopes[:MAX_ENVELOPES]):
        size += len(envelope)
        if count and size > FRAME_BYTES:
            return count
    return min(len(envelopes), MAX_ENVELOPES)
