"""A link that ends in the middle of things."""

import asyncio
import gc
import warnings

from ludus.wire.codec import encode
from ludus.wire.connection import Connection, Handler


class Silent:
    """A connection on which nothing ever comes."""

    async def recv(self):
        await asyncio.Event().wait()

    async def send(self, data):
        pass

    async def close(self):
        pass


def test_a_call_that_ends_with_its_link_before_it_began_is_ended_without_a_warning():
    began = []

    async def answer(body):
        began.append(body)

    async def main():
        link = Connection(Silent(), handlers={"do": Handler(str, answer)})
        running = asyncio.create_task(link.run())
        await asyncio.sleep(0)
        link._read(b"[" + encode({"id": 1, "call": "do", "body": "it"}) + b"]")
        for task in asyncio.all_tasks() - {asyncio.current_task()}:  # as the end of a loop does
            task.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()
    assert began == []
    assert [str(each.message) for each in caught] == []
