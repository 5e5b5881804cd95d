"""A client of an MCP server, through the official package. Promise: our memory is bounded and
`close` returns, whatever the server does.

stdio   the server is a process in a sandbox; a thread reads its lines
http    streamable HTTP; the server may keep state per session
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

from ludus.adapters.outside import MAX_ANSWER_BYTES, as_text, imported
from ludus.errors import EnvironmentFailed, describe, first_fault
from ludus.sandboxes.process_handle import ProcessHandle

MAX_SESSION_BYTES = 64 * 1024 * 1024
"""Limit on a server's output in one session: a flood would hold up the event loop."""
SEND_S = 10.0
LEAVE_S = 3.0
STDERR_BYTES = 2048
"""Bytes kept of a server's standard error."""
Streams = AbstractAsyncContextManager[tuple[Any, Any]]


class StderrTail:
    """Why a server ended: the end of its standard error, or the limit that it broke."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, data: bytes) -> None:
        self._data = (self._data + data)[-STDERR_BYTES:]

    def __str__(self) -> str:
        return bytes(self._data).decode("utf-8", "replace").strip() or "nothing on its standard error"


class McpClient:
    """A connected client, held by one task, which must enter and leave the package's contexts."""

    def __init__(self, streams: Callable[[StderrTail], Streams], *, where: str) -> None:
        self._mcp = imported("mcp", extra="mcp")
        self._streams, self._where = streams, where
        self._stderr = StderrTail()
        self._leave = asyncio.Event()
        self._client: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run())

    async def list_tools(self) -> list[Any]:
        client = await asyncio.shield(self._client)
        tools: list[Any] = []
        cursor: str | None = None
        for _ in range(100):  # a server could send pages without end
            params = self._mcp.types.PaginatedRequestParams(cursor=cursor) if cursor else None
            page = await self._asked(client.list_tools(params=params), what="tools/list")
            tools += page.tools
            cursor = page.next_cursor
            if not cursor:
                return tools
        raise EnvironmentFailed(f"{self._where}: tools/list has more than 100 pages")

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """The result, unchecked. `call_tool` of the package would check it against the server's own
        schema, in which a regular expression could keep this process busy without end."""
        client = await asyncio.shield(self._client)
        types = self._mcp.types
        request = types.CallToolRequest(params=types.CallToolRequestParams(name=name, arguments=arguments))
        return await self._asked(client.send_request(request, types.CallToolResult), what=f"tools/call {name}")

    async def close(self) -> None:
        self._leave.set()
        if not self._client.done():  # still connecting
            self._task.cancel()
        done, _ = await asyncio.wait([self._task], timeout=LEAVE_S)
        if not done:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=LEAVE_S)

    async def _asked(self, request: Any, *, what: str) -> Any:
        try:
            return await request
        except (asyncio.CancelledError, EnvironmentFailed):
            raise
        except self._mcp.MCPError as error:
            if error.error.code != self._mcp.types.CONNECTION_CLOSED:
                raise
            raise EnvironmentFailed(f"{self._where}: {what}: the connection ended: {self._stderr}") from error
        except Exception as error:  # the package may raise anything
            raise EnvironmentFailed(f"{self._where}: {what}: {describe(error)}") from error

    async def _run(self) -> None:
        try:
            async with self._streams(self._stderr) as (read, write), self._mcp.ClientSession(read, write) as client:
                await client.initialize()
                if not self._client.done():
                    self._client.set_result(client)
                await self._leave.wait()
        except BaseException as error:  # handed to whoever waits for the client
            fault = first_fault(error) if isinstance(error, BaseExceptionGroup) else error
            if not self._client.done():
                failure = EnvironmentFailed(f"{self._where}: cannot be reached: {describe(fault)}; {self._stderr}")
                self._client.set_exception(fault if isinstance(fault, EnvironmentFailed) else failure)
                self._client.exception()  # read, so that asyncio does not log it
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise


class Lines:
    """Splits a byte stream into lines. Raises if one line or the whole stream is too long."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._total = 0

    def feed(self, data: bytes) -> list[bytes]:
        self._total += len(data)
        if self._total > MAX_SESSION_BYTES:
            raise EnvironmentFailed(f"the server sent more than {MAX_SESSION_BYTES} bytes in one session")
        searched = len(self._rest)
        self._rest += data
        end = self._rest.rfind(b"\n", searched)
        lines = bytes(self._rest[:end]).split(b"\n") if end >= 0 else []
        del self._rest[: end + 1]
        if max(map(len, (*lines, self._rest))) > MAX_ANSWER_BYTES:
            raise EnvironmentFailed(f"the server sent a message of more than {MAX_ANSWER_BYTES} bytes")
        return [line for line in lines if line.strip()]


@asynccontextmanager
async def process_streams(attach: Callable[[], ProcessHandle], stderr: StderrTail) -> AsyncIterator[tuple[Any, Any]]:
    """Messages to and from a process, which ends with the context."""
    import anyio

    handle = await asyncio.to_thread(attach)
    incoming, read = anyio.create_memory_object_stream[Any](0)
    write, outgoing = anyio.create_memory_object_stream[Any](0)
    loop, stopped = asyncio.get_running_loop(), threading.Event()

    def take(line: bytes) -> None:
        """Returns when the message is taken."""
        if not stopped.is_set():
            with suppress(Exception):  # closed meanwhile
                asyncio.run_coroutine_threadsafe(incoming.send(_message(line)), loop).result()

    def run() -> None:
        try:
            _read(handle, take, stopped=stopped, stderr=stderr)
        except (EnvironmentFailed, OSError) as error:
            stderr.add(str(error).encode())
        with suppress(RuntimeError):  # the loop is gone
            loop.call_soon_threadsafe(incoming.close)

    reader = threading.Thread(target=run, name="mcp-stdio", daemon=True)
    reader.start()
    writer = asyncio.create_task(_write(handle, outgoing, incoming))
    try:
        yield read, write
    finally:
        stopped.set()
        writer.cancel()
        for stream in (incoming, read, write, outgoing):
            stream.close()
        await asyncio.shield(asyncio.create_task(asyncio.to_thread(_end, handle, reader)))


def _read(
    handle: ProcessHandle, take: Callable[[bytes], None], *, stopped: threading.Event, stderr: StderrTail
) -> None:
    lines = Lines()
    while not stopped.is_set():
        stream, data = handle.receive(0.5) or (-1, b"")
        if stream == 0:
            return
        if stream == 2:
            stderr.add(data)
        for line in lines.feed(data) if stream == 1 else ():
            take(line)


async def _write(handle: ProcessHandle, outgoing: Any, incoming: Any) -> None:
    try:
        async for message in outgoing:
            data = message.message.model_dump_json(by_alias=True, exclude_unset=True).encode("utf-8", "replace") + b"\n"
            await asyncio.to_thread(handle.send, data, timeout_s=SEND_S)
    except OSError:  # it is gone or does not read: callers must learn that no answer will come
        incoming.close()


def _message(line: bytes) -> Any:
    from mcp import types
    from mcp.shared.message import SessionMessage

    try:
        if rb"\ud" in line.lower():  # a lone surrogate, which the package refuses
            line = as_text(json.loads(line)).encode()
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except (ValueError, RecursionError) as error:  # perhaps a log line
        return error


def _end(handle: ProcessHandle, reader: threading.Thread) -> None:
    handle.kill()
    reader.join(timeout=LEAVE_S)  # first, so that it does not read from reused file descriptors
    handle.close()


@asynccontextmanager
async def http_streams(url: str, _stderr: StderrTail) -> AsyncIterator[tuple[Any, Any]]:
    imported("mcp", extra="mcp")
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    class Bounded(httpx2.AsyncByteStream):
        """Cuts off an endless answer; the package limits its events, but not a plain JSON body."""

        def __init__(self, stream: Any) -> None:
            self.stream = stream

        async def aclose(self) -> None:
            await self.stream.aclose()

        async def __aiter__(self) -> AsyncIterator[bytes]:
            total = 0
            async for chunk in self.stream:
                total += len(chunk)
                if total > MAX_SESSION_BYTES:
                    raise httpx2.ReadError(f"an answer of more than {MAX_SESSION_BYTES} bytes")
                yield chunk

    async def bound(response: Any) -> None:
        response.stream = Bounded(response.stream)

    timeout = httpx2.Timeout(None, connect=10.0)  # the run limits how long an answer may take
    transport = httpx2.AsyncHTTPTransport(verify=url.startswith("https:"))
    async with (
        httpx2.AsyncClient(transport=transport, timeout=timeout, event_hooks={"response": [bound]}) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MAX_ANSWER_BYTES) as streams,
    ):
        yield streams
