"""Two ends of a connection: calls, cancellation, failures, and ends in the middle of things."""

import asyncio
import gc
import socket
import warnings

import pytest

from ludus import errors
from ludus.errors import ControllerFailed, EngineFailed, LudusError, WorkerLost
from ludus.wire.codec import encode, error_of, fault_of
from ludus.wire.connection import Connection, Handler
from ludus.wire.reconnect import Unreachable
from ludus.wire.stream import StreamTransport


class Silent:
    """A transport on which nothing ever comes."""

    async def recv(self):
        await asyncio.Event().wait()

    async def send(self, data):
        pass

    async def close(self):
        pass


class Slow(StreamTransport):
    """A transport that can hold back what it has received."""

    def __init__(self, *streams):
        super().__init__(*streams)
        self.gate = asyncio.Event()
        self.gate.set()
        self.num_frames = 0

    async def recv(self):
        data = await super().recv()
        self.num_frames += 1
        await self.gate.wait()
        return data


def connected(scene, **handlers):
    """Runs `scene(here, there)` with two ends of a socketpair, and checks that both are empty
    afterwards."""

    async def main():
        transports = [await Slow.over(end) for end in socket.socketpair()]
        here = Connection(transports[0])
        there = Connection(transports[1], handlers={name: Handler(*each) for name, each in handlers.items()})
        here.transport, there.transport = transports
        running = [asyncio.create_task(end.run()) for end in (here, there)]
        try:
            async with asyncio.timeout(60):
                result = await scene(here, there)
                await asyncio.sleep(0.05)
            assert not here._waiting
            assert not there._serving
            assert not here._outbox
            return result
        finally:
            await here.close()
            await there.close()
            await asyncio.gather(*running)

    return asyncio.run(main())


class Work:
    """A handler that works until it is released or cancelled."""

    def __init__(self):
        self.state, self.began, self.release = "new", asyncio.Event(), asyncio.Event()

    async def __call__(self, body):
        self.state = "began"
        self.began.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.state = "cancelled"
            raise
        self.state = "finished"
        return self.state


async def cancelled(call):
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


@pytest.mark.parametrize("cancel", [True, False])
def test_a_cancelled_caller_cancels_the_handler_there_only_if_it_asked_for_it(cancel):
    work = Work()

    async def scene(here, there):
        call = asyncio.create_task(here.call("work", cancel=cancel))
        await work.began.wait()
        await cancelled(call)
        await asyncio.sleep(0.05)
        state = work.state
        work.release.set()
        return state

    assert connected(scene, work=(None, lambda body: work(body))) == ("cancelled" if cancel else "began")


def test_a_call_that_is_cancelled_before_it_left_never_works_there_for_long():
    work = Work()

    async def scene(here, there):
        call = asyncio.create_task(here.call("work", cancel=True))
        await asyncio.sleep(0)
        await cancelled(call)
        await asyncio.sleep(0.05)
        assert work.state in ("new", "cancelled")
        return await here.call("other", answer=int)

    assert connected(scene, work=(None, lambda body: work(body)), other=(None, lambda _: 7)) == 7


def test_a_cancellation_that_crosses_the_answer_disturbs_nothing():
    work = Work()

    async def scene(here, there):
        call = asyncio.create_task(here.call("work", answer=str, cancel=True))
        await work.began.wait()
        here.transport.gate.clear()
        work.release.set()
        while not here.transport.num_frames:  # the answer has arrived here and has not been read
            await asyncio.sleep(0.01)
        await cancelled(call)
        here.transport.gate.set()
        work.release.set()
        return work.state, await here.call("work", answer=str, cancel=True)

    assert connected(scene, work=(None, lambda body: work(body))) == ("finished", "finished")


def test_a_timeout_cancels_the_handler_and_other_calls_go_on():
    slow, other = Work(), Work()

    async def scene(here, there):
        waiting = asyncio.create_task(here.call("other", answer=str, cancel=True))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await here.call("slow", cancel=True)
        while slow.state != "cancelled":
            await asyncio.sleep(0.01)
        other.release.set()
        return await waiting

    handlers = {"slow": (None, lambda body: slow(body)), "other": (None, lambda body: other(body))}
    assert connected(scene, **handlers) == "finished"


def test_a_future_that_a_handler_returns_is_not_cancelled_with_its_caller():
    async def scene(here, there):
        shared = asyncio.get_running_loop().create_future()
        there._handlers["shared"] = Handler(None, lambda _: shared)
        call = asyncio.create_task(here.call("shared", cancel=True))
        await asyncio.sleep(0.05)
        await cancelled(call)
        await asyncio.sleep(0.05)
        shared.set_result(None)

    connected(scene)


def test_a_call_on_a_connection_that_ends_is_lost_even_if_it_would_cancel():
    work = Work()

    async def scene(here, there):
        call = asyncio.create_task(here.call("work", cancel=True))
        await work.began.wait()
        await there.close()
        with pytest.raises(WorkerLost, match="the other end is lost"):
            await call
        with pytest.raises(WorkerLost, match="cannot be called any more"):
            await here.call("work", cancel=True)
        return work.state

    assert connected(scene, work=(None, lambda body: work(body))) == "cancelled"


def test_envelopes_of_one_turn_of_the_loop_share_a_frame():
    async def scene(here, there):
        await asyncio.gather(*(here.call("echo", number, answer=int) for number in range(20)))
        return there.transport.num_frames

    assert connected(scene, echo=(int, lambda number: number)) == 1


FAILURES = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, LudusError)]


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_keeps_its_class_and_text_over_the_wire(failure):
    def fail(text):
        raise failure(text)

    async def scene(here, there):
        with pytest.raises(LudusError) as raised:
            await here.call("fail", "as ordered: ä")
        return raised.value

    error = connected(scene, fail=(str, fail))
    assert type(error) is failure
    assert str(error) == "as ordered: ä"


def test_a_failure_of_another_class_is_the_nearest_one_of_ours():
    class Mine(EngineFailed):
        pass

    assert type(error_of(fault_of(Mine("x")))) is EngineFailed
    crossed = error_of(fault_of(Unreachable("x", status=418)))
    assert (type(crossed), crossed.status) == (ControllerFailed, 418)
    assert str(error_of(fault_of(KeyError("x")))) == "KeyError: 'x'"


def test_a_call_that_ends_with_its_link_before_it_began_is_ended_without_a_warning():
    began = []

    async def answer(body):
        began.append(body)

    async def main():
        connection = Connection(Silent(), handlers={"do": Handler(str, answer)})
        running = asyncio.create_task(connection.run())
        await asyncio.sleep(0)
        connection._read(b"[" + encode({"id": 1, "call": "do", "body": "it"}) + b"]")
        for task in asyncio.all_tasks() - {asyncio.current_task()}:  # as the end of a loop does
            task.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # other tests' garbage must not warn below
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()
    assert began == []
    assert [str(each.message) for each in caught] == []
