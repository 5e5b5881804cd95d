"""One connection that carries many calls, both ways. Promise: every call ends with its answer, a
named failure, or WorkerLost.

Envelopes wait in the outbox; one task empties it into a frame whenever the transport is ready. A
lone call leaves at once, and under load dozens share a frame. Either end may call the handlers of
the other.

    call() ──▶ outbox ──(frame)──▶ transport ──(frame)──▶ _read() ──▶ handler in a task ──▶ outbox
      └─ waits in `_waiting` by id ◀──────────────── answer ◀─────────────────────────────────┘
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from ludus.errors import ConfigError, ControllerFailed, WorkerLost, nearest
from ludus.wire.codec import MAX_FRAME_BYTES, Envelope, Fault, decode, decode_frame, encode, error_of, fault_of

T = TypeVar("T")
MAX_ENVELOPES = 32
"""In one frame: the other end should begin to work before everything is written. With 512, two ends
with a thousand sessions wait for each other, and there are 40 % fewer turns per second."""
FRAME_BYTES = 2**20
"""A frame of this size is full, whatever the number of its envelopes."""
MAX_BODY_BYTES = MAX_FRAME_BYTES - 2**20


class Transport(Protocol):
    """What a connection needs of a websocket or stream; messages are whole."""

    async def send(self, data: bytes) -> None: ...

    async def recv(self) -> bytes | str:
        """Raises when the transport is closed."""
        ...

    async def close(self) -> None: ...


class Handler(NamedTuple):
    """What the other end may call: type of the body (None: no body) and the function that answers.

    A plain function must be quick: it runs on the loop, before the next envelope is read. A
    coroutine runs as a task, which is cancelled when the connection ends. A future is answered
    from and left alone."""

    body: Any
    function: Callable[[Any], Any]


class Connection:
    """`handlers`: what the other end may call. Whoever makes a connection awaits its `run()`."""

    def __init__(
        self, transport: Transport, *, handlers: Mapping[str, Handler] | None = None, peer: str = "the other end"
    ) -> None:
        self._transport = transport
        self._handlers = dict(handlers or {})
        self.peer = peer
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._outbox: list[bytes] = []
        self._has_mail = asyncio.Event()
        self._serving: dict[object, asyncio.Future[Any]] = {}
        """Running handlers by the id of their call."""
        self._over: str | None = None
        self._writer: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self._over is None

    async def call(self, name: str, body: Any = None, *, answer: type[T] | Any = None, cancel: bool = False) -> T | Any:
        """Calls the other end and returns its answer as the type `answer`. When the caller is
        cancelled, the handler there runs on; with `cancel` it is cancelled too."""
        if self._over is not None:
            raise WorkerLost(f"{self.peer} cannot be called any more: {self._over}")
        number = next(self._ids)
        future: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            self._post(Envelope(id=number, call=name, body=_packed(body)))
            raw = await future
        except asyncio.CancelledError:
            if cancel and self.alive:
                self._post(Envelope(cancel=number))
            raise
        finally:
            self._waiting.pop(number, None)
        return None if answer is None else decode(raw, answer)

    def tell(self, name: str, body: Any = None) -> None:
        """Calls the other end without waiting; nothing comes back, not even a failure."""
        if self._over is None:
            self._post(Envelope(call=name, body=_packed(body)))

    async def run(self) -> str:
        """Serves both ends until the transport is closed, and returns why it was."""
        self._writer = asyncio.create_task(self._write())
        reason = "the connection was closed"
        try:
            while True:
                self._read(await self._transport.recv())
                await asyncio.sleep(0)  # handlers run, and answer, before the next frame is read
        except asyncio.CancelledError:
            reason = "the connection was closed here"
            raise
        except ConfigError as error:
            reason = str(error)
        except Exception as error:  # every transport has its own error for its end  # noqa: BLE001
            reason = f"the connection ended ({type(error).__name__}: {error})".replace("\n", " ")
        finally:
            self._end(reason)
        return reason

    async def close(self) -> None:
        await self._transport.close()

    def _post(self, envelope: Envelope) -> None:
        self._outbox.append(encode(envelope))
        self._has_mail.set()

    async def _write(self) -> None:
        try:
            while True:
                await self._has_mail.wait()
                count = _num_in_frame(self._outbox)
                mail, self._outbox = self._outbox[:count], self._outbox[count:]
                if not self._outbox:
                    self._has_mail.clear()
                await self._transport.send(b"[" + b",".join(mail) + b"]")
        except Exception:  # noqa: BLE001
            await self._transport.close()  # then `run` ends everything

    def _read(self, frame: bytes | str) -> None:
        for envelope in decode_frame(frame):
            if envelope.call:
                self._serve(envelope)
            elif envelope.cancel:
                if (serving := self._serving.get(envelope.cancel)) is not None:  # else it has answered already
                    serving.cancel()
            elif (future := self._waiting.get(envelope.id)) is not None and not future.done():
                if envelope.error is not None:
                    future.set_exception(error_of(envelope.error))
                else:
                    future.set_result(envelope.body)

    def _serve(self, envelope: Envelope) -> None:
        try:
            result = self._handled(envelope)
            if not inspect.isawaitable(result):
                self._reply(Envelope(id=envelope.id, body=_packed(result)))
                return
        except Exception as error:  # noqa: BLE001
            self._reply(Envelope(id=envelope.id, error=fault_of(error)))
            return
        if not isinstance(result, asyncio.Future):
            result, key = asyncio.ensure_future(result), envelope.id or object()
            self._serving[key] = result
            result.add_done_callback(lambda _: self._serving.pop(key, None))
        result.add_done_callback(partial(self._reply_from, envelope.id))

    def _handled(self, envelope: Envelope) -> Any:
        handler = self._handlers.get(envelope.call)
        if handler is None:
            known = sorted(self._handlers)
            near = nearest(envelope.call, known)
            raise ControllerFailed(f"no such call {envelope.call!r}.{near} Known: {', '.join(known)}.", status=404)
        return handler.function(None if handler.body is None else decode(envelope.body, handler.body))

    def _reply_from(self, number: int, future: asyncio.Future[Any]) -> None:
        try:
            self._reply(Envelope(id=number, body=_packed(future.result())))
        except asyncio.CancelledError:
            cancelled = Fault("WorkerLost", "the call was cancelled on the other end", 503)
            self._reply(Envelope(id=number, error=cancelled))
        except BaseException as error:  # the handler's, or of a body that is not JSON or too large  # noqa: BLE001
            self._reply(Envelope(id=number, error=fault_of(error)))

    def _reply(self, envelope: Envelope) -> None:
        if envelope.id and self.alive:
            self._post(envelope)

    def _end(self, reason: str) -> None:
        self._over = reason
        for task in (self._writer, *self._serving.values()):
            if task is not None:
                task.cancel()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(WorkerLost(f"{self.peer} is lost: {reason}"))
                retrieved(future)
        self._waiting.clear()


def detached(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task that continues without its callers, who may never see its failure."""
    task = asyncio.create_task(work)
    task.add_done_callback(retrieved)
    return task


def retrieved(future: asyncio.Future[Any]) -> None:
    """A done callback that marks a failure as seen, for futures whose callers may be gone."""
    if not future.cancelled():
        future.exception()


def _packed(body: Any) -> msgspec.Raw:
    packed = encode(body)
    if len(packed) > MAX_BODY_BYTES:  # sent, it would end the connection and with it everybody else's calls
        size, most = len(packed) / 2**20, MAX_BODY_BYTES / 2**20
        raise ControllerFailed(f"a message of {size:.0f} MiB cannot be sent; at most {most:.0f} MiB", status=413)
    return msgspec.Raw(packed)


def _num_in_frame(envelopes: list[bytes]) -> int:
    """How many envelopes make the next frame: at least one."""
    size = 0
    for count, envelope in enumerate(envelopes[:MAX_ENVELOPES]):
        size += len(envelope)
        if count and size > FRAME_BYTES:
            return count
    return min(len(envelopes), MAX_ENVELOPES)
