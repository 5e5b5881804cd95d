"""The stream's messages, against AgentRL's own."""

from __future__ import annotations

import asyncio

import pytest

from ludus.controller.agentrl.grpc import REQUEST, GrpcWire, Listener, _envelope_class, indices_of
from ludus.errors import ConfigError, WorkerLost

Ours = _envelope_class()


@pytest.fixture(scope="module")
def theirs():
    """Their package in this process, beside ours: neither notices the other."""
    from agentrl.worker.pb import common_pb2, controller_v1_pb2

    return common_pb2, controller_v1_pb2


def test_their_beat_is_read(theirs):
    common, messages = theirs
    indices = [common.TaskIndex(int_value=0), common.TaskIndex(int_value=-1), common.TaskIndex(string_value="a")]
    beat = messages.ReceiveHeartbeatRequest(id="u", name="kg-std", concurrency=7, indices=indices)
    sent = messages.WorkerStreamEnvelope(id="1", type="HEARTBEAT", receive_heartbeat_request=beat)
    read = Ours.FromString(sent.SerializeToString())
    assert (read.id, read.type, read.HasField("beat"), read.HasField("notice")) == ("1", 0, True, False)
    assert (read.beat.id, read.beat.name, read.beat.concurrency) == ("u", "kg-std", 7)
    assert indices_of(read.beat) == [0, -1, "a"]


def test_their_answer_and_their_notice_are_read(theirs):
    _, messages = theirs
    envelope = messages.WorkerStreamEnvelope
    answer = envelope(
        id="9", type="RESPONSE", worker_response=envelope.WorkerResponse(code=406, message="full", json=b"{}")
    )
    read = Ours.FromString(answer.SerializeToString())
    assert (read.type, read.response.code, read.response.message, read.response.json) == (2, 406, "full", b"{}")
    notice = envelope(type="REQUEST", session_cancel_notice=messages.SessionCancelNotice(session_id=2**47))
    assert Ours.FromString(notice.SerializeToString()).notice.session_id == 2**47


def test_our_request_is_read_by_them(theirs):
    _, messages = theirs

    async def sent() -> bytes:
        wire = GrpcWire(Ours)
        calling = asyncio.create_task(wire.call("start_sample", {"index": 1}))
        data = await wire.outbox.get()
        calling.cancel()
        assert data is not None
        return data

    read = messages.WorkerStreamEnvelope.FromString(asyncio.run(sent()))
    assert read.type == messages.WorkerStreamEnvelope.REQUEST == REQUEST
    assert (read.worker_request.method, read.worker_request.endpoint, read.worker_request.json) == (
        "POST",
        "start_sample",
        b'{"index":1}',
    )


def test_only_what_the_table_names_is_called():
    with pytest.raises(KeyError):
        asyncio.run(GrpcWire(Ours).call("heart_beat"))


def test_answers_find_their_call_in_any_order_and_the_end_of_the_stream_ends_all():
    async def run() -> None:
        wire = GrpcWire(Ours)
        first, second, third = (asyncio.create_task(wire.call("get_sessions")) for _ in range(3))
        ids = [Ours.FromString(await wire.outbox.get()).id for _ in range(3)]
        for call_id, code in zip(reversed(ids[:2]), (201, 200), strict=True):
            answer = Ours(id=call_id)
            answer.response.code, answer.response.json = code, b'{"7": 0}'
            wire.answered(call_id, answer.response)
        assert (await first).body == {"7": 0}
        assert (await second).status == 201
        wire.end("gone")
        with pytest.raises(WorkerLost, match="gone"):
            await third
        with pytest.raises(WorkerLost, match="gone"):
            await wire.call("get_sessions")

    asyncio.run(run())


def test_the_stream_carries_no_token_so_it_is_not_served_beyond_loopback():
    async def listen() -> None:
        await Listener(beat=None, noticed=None, left=None).listen("0.0.0.0", 0)

    with pytest.raises(ConfigError, match="loopback"):
        asyncio.run(listen())
