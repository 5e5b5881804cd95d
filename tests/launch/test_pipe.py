import asyncio
import socket

import pytest

from ludus.launch.placement.pipe import Pipe


def between(work):
    """`work(one, other)`, with the two ends of a pipe."""

    async def main():
        one, other = [await Pipe.over(end) for end in socket.socketpair()]
        try:
            async with asyncio.timeout(30):
                return await work(one, other)
        finally:
            await one.close()
            await other.close()

    return asyncio.run(main())


def test_what_is_sent_in_one_turn_of_the_loop_arrives_together_and_in_order():
    async def work(one, other):
        for number in range(5):
            one.send(number)
        other.send("back")
        first = await other.receive()
        one.send("later")
        return first, await other.receive(), await one.receive()

    assert between(work) == ([0, 1, 2, 3, 4], ["later"], ["back"])


def test_a_message_may_be_larger_than_what_is_read_at_once():
    large = bytes(range(256)) * 40_000

    async def work(one, other):
        one.send(large)
        one.send(b"small")
        return await other.receive()

    assert between(work) == [large, b"small"]


def test_an_end_that_is_gone_is_heard_of_after_its_last_words():
    async def work(one, other):
        one.send("farewell")
        await one.close()
        last = await other.receive()
        with pytest.raises(EOFError):
            await other.receive()
        other.send("into the void")
        one.send("after the end")
        await asyncio.sleep(0.01)
        return last

    assert between(work) == ["farewell"]
