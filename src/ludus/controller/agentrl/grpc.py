"""AgentRL workers that open a gRPC stream to the controller. Promise: each stream has one writer.

    worker ──WorkerStream──▶ HEARTBEAT (name, slots, indices) · RESPONSE · REQUEST (session is gone)
           ◀─────────────── REQUEST (one of CALLS, with the JSON that HTTP workers get)

The stream carries no access token, so it is served on loopback only. The message classes come from
a descriptor pool of our own, because AgentRL's package may be imported in the same process.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

from ludus.controller.agentrl.wires import CALLS, Answer, read_json
from ludus.controller.service.access import is_loopback
from ludus.errors import ConfigError, WorkerLost
from ludus.wire.codec import encode
from ludus.wire.connection import detached

SERVICE = "agentbench.Controller"
MAX_BYTES = 100 * 2**20
HEARTBEAT, REQUEST, RESPONSE = 0, 1, 2


def _envelope_class() -> Any:
    """The messages of the stream. Their bytes are those of AgentRL's edition 2023: optional fields
    of proto2, and integers for enums."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    file = FileDescriptorProto(name="ludus/agentrl.proto", package="agentbench", syntax="proto2")
    kinds = {"string": Field.TYPE_STRING, "bytes": Field.TYPE_BYTES, "int64": Field.TYPE_INT64}
    kinds |= {"uint32": Field.TYPE_UINT32, "int32": Field.TYPE_INT32, "enum": Field.TYPE_INT32}

    def message(called: str, /, **fields: tuple[int, str]) -> None:
        described = file.message_type.add(name=called)
        for field, (number, declared) in fields.items():
            kind = declared.removeprefix("repeated ")
            added = described.field.add(name=field, number=number)
            added.label = Field.LABEL_REPEATED if kind != declared else Field.LABEL_OPTIONAL
            added.type = kinds.get(kind, Field.TYPE_MESSAGE)
            if kind not in kinds:
                added.type_name = f".agentbench.{kind}"

    message("TaskIndex", int_value=(1, "int64"), string_value=(2, "string"))
    message("Beat", id=(1, "string"), name=(2, "string"), concurrency=(3, "uint32"), indices=(4, "repeated TaskIndex"))
    message("Notice", session_id=(1, "int64"))
    message("Request", method=(1, "string"), endpoint=(2, "string"), json=(3, "bytes"))
    message("Response", code=(1, "int32"), message=(2, "string"), json=(3, "bytes"))
    message(
        "Envelope",
        id=(1, "string"),
        type=(2, "enum"),
        beat=(101, "Beat"),
        notice=(111, "Notice"),
        response=(121, "Response"),
        request=(211, "Request"),
    )
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName("agentbench.Envelope"))


class GrpcWire:
    """One stream: calls leave through one queue, answers return by id and in any order."""

    def __init__(self, envelope: Any) -> None:
        self._envelope = envelope
        self._ids = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self.outbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._over = ""

    async def call(self, name: str, body: Any = None) -> Answer:
        if self._over:
            raise WorkerLost(f"the AgentRL worker cannot be called: {self._over}")
        call_id = f"ludus-{next(self._ids)}"
        future = self._waiting[call_id] = asyncio.get_running_loop().create_future()
        out = self._envelope(id=call_id, type=REQUEST)
        out.request.method, out.request.endpoint = CALLS[name], name
        if body is not None:
            out.request.json = encode(body)
        self.outbox.put_nowait(out.SerializeToString())
        try:
            response = await future
        finally:
            self._waiting.pop(call_id, None)
        if response.code != 200:
            return Answer(response.code, text=response.message)
        return Answer(200, body=read_json(response.json))

    def answered(self, call_id: str, response: Any) -> None:
        future = self._waiting.get(call_id)
        if future is not None and not future.done():
            future.set_result(response)

    async def close(self) -> None:
        self.end("it was dismissed")

    def end(self, reason: str) -> None:
        self._over = self._over or reason
        self.outbox.put_nowait(None)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(WorkerLost(f"the AgentRL worker is lost: {reason}"))
                future.exception()


Beat = Callable[[GrpcWire, Any], Coroutine[Any, Any, object]]


class Listener:
    """Serves WorkerStream. Calls `beat(wire, beat)` for heartbeats, `noticed(number)` for notices,
    `left(wire)` at the end of a stream."""

    def __init__(
        self, *, beat: Beat, noticed: Callable[[int], object], left: Callable[[GrpcWire], Awaitable[object]]
    ) -> None:
        try:
            self._envelope = _envelope_class()
        except ImportError:
            raise ConfigError("gRPC workers need the extra `agentrl`: pip install 'ludus[agentrl]'") from None
        self._beat, self._noticed, self._left = beat, noticed, left
        self._server: Any = None
        self.port = 0

    async def listen(self, host: str, port: int) -> None:
        import grpc

        if not is_loopback(host):
            raise ConfigError(
                f"AgentRL's gRPC workers send no access token, so their port is served on loopback only, not on {host}; "
                "use HTTP with an access token, or a tunnel"
            )
        self._server = grpc.aio.server(options=[("grpc.max_receive_message_length", MAX_BYTES)])
        handler = grpc.stream_stream_rpc_method_handler(self._stream, self._envelope.FromString, None)
        served = grpc.method_handlers_generic_handler(SERVICE, {"WorkerStream": handler})
        self._server.add_generic_rpc_handlers((served,))
        self.port = self._server.add_insecure_port(f"{host}:{port}")
        await self._server.start()

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop(grace=0)

    async def _stream(self, incoming: AsyncIterator[Any], context: Any) -> None:
        wire = GrpcWire(self._envelope)
        writer = asyncio.create_task(self._write(wire, context))
        try:
            async for envelope in incoming:
                await self._read(wire, envelope)
        finally:
            wire.end("its stream was closed")
            writer.cancel()
            await self._left(wire)

    async def _write(self, wire: GrpcWire, context: Any) -> None:
        while (data := await wire.outbox.get()) is not None:
            await context.write(data)

    async def _read(self, wire: GrpcWire, envelope: Any) -> None:
        if envelope.type == HEARTBEAT and envelope.HasField("beat"):
            # in a task, because joining calls the worker over this stream
            detached(self._beat(wire, envelope.beat))
        elif envelope.type == RESPONSE and envelope.HasField("response"):
            wire.answered(envelope.id, envelope.response)
        elif envelope.HasField("notice"):
            self._noticed(envelope.notice.session_id)


def indices_of(beat: Any) -> list[int | str]:
    return [each.int_value if each.HasField("int_value") else each.string_value for each in beat.indices]
