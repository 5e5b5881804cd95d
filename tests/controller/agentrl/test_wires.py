from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ludus.controller.agentrl.wires import HttpWire
from ludus.errors import EnvironmentFailed, WorkerLost


def with_server(answers: list[bytes], play: Callable[[HttpWire], Awaitable[None]]) -> list[int]:
    """Answers requests in order, on connections that it keeps open; says on which connection each
    request came."""
    used: list[int] = []
    connections: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(connections)
        connections.append(writer)
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next(
                (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
            )
            await reader.readexactly(length)
            used.append(number)
            status, _, body = answers.pop(0).partition(b" ")
            writer.write(b"HTTP/1.1 %s x\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body))

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        wire = HttpWire(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/api/")
        try:
            await play(wire)
        finally:
            await wire.close()
            server.close()

    asyncio.run(run())
    return used


def test_a_connection_is_used_again_but_never_after_a_500():
    async def play(wire: HttpWire) -> None:
        statuses = [(await wire.call("get_sessions")).status for _ in range(5)]
        assert statuses == [200, 500, 200, 200, 500]

    assert with_server([b"200 {}", b"500 oh", b"200 {}", b"200 {}", b"500 oh"], play) == [0, 0, 1, 1, 1]


def test_calls_under_way_outlive_the_500_of_another():
    async def play(wire: HttpWire) -> None:
        answers = await asyncio.gather(*(wire.call("interact", {"session_id": n}) for n in range(3)))
        assert sorted(answer.status for answer in answers) == [200, 200, 500]

    with_server([b"500 oh", b"200 {}", b"200 {}"], play)


def test_what_went_wrong_is_named():
    async def play(wire: HttpWire) -> None:
        assert (await wire.call("interact", {})).detail == "400 No such session"
        assert (await wire.call("interact", {})).detail == "500 Internal Server Error"
        with pytest.raises(EnvironmentFailed, match="not JSON"):
            await wire.call("interact", {})

    with_server([b'400 {"detail": "No such session"}', b"500 Internal Server Error", b"200 NaN"], play)


def test_nobody_there_is_a_worker_lost():
    with pytest.raises(WorkerLost, match="cannot be called"):
        asyncio.run(HttpWire("http://127.0.0.1:1/api").call("get_sessions"))


def test_only_what_the_table_names_is_called():
    with pytest.raises(KeyError):
        asyncio.run(HttpWire("http://127.0.0.1:1/api").call("cancel_all"))
