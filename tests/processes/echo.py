"""A process with a connection to its parent: `python -m tests.processes.echo FD PARENT`."""

import asyncio
import os
import sys

from ludus.errors import EngineLost
from ludus.processes.parent import parent_socket
from ludus.wire.connection import Connection, Handler
from ludus.wire.stream import StreamTransport


async def main():
    async def ask_parent(number):
        return await connection.call("twice", number, answer=int)

    def fail(text):
        raise EngineLost(text)

    async def last_words(texts):
        for text in texts:
            connection.tell("heard", text)
        await asyncio.sleep(0.1)  # the writer's turn
        os._exit(3)

    handlers = {
        "ask_parent": Handler(int, ask_parent),
        "fail": Handler(str, fail),
        "last_words": Handler(list[str], last_words),
    }
    connection = Connection(await StreamTransport.over(parent_socket(sys.argv)), handlers=handlers)
    await connection.run()


if __name__ == "__main__":
    asyncio.run(main())
