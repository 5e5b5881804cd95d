"""The client process: plays numbered sessions, several at once, for ever. Promise: a trajectory is
on disk before its number is done with.

python -m tests.chaos.player URL FOLDER

FOLDER/acknowledged.jsonl has a line for each finished trajectory, FOLDER/failures.jsonl one for
each attempt that failed. A player that is
started again goes on with the numbers that were not acknowledged.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import secrets
import sys
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from ludus.controller.client.remote import RemoteClient
from ludus.errors import LudusError
from ludus.processes.parent import die_with
from ludus.types import Action, Task
from tests.chaos.worlds import NAMES

T = TypeVar("T")
AT_ONCE = 6
LEASE_S = 2.0
HANG_S = 45.0
"""Of one call. Everything that was killed is back after a few seconds, so nothing should take near
as long."""


class Hang(Exception):
    """A call that had neither an answer nor a failure."""


class Player:
    def __init__(self, client: RemoteClient, folder: Path) -> None:
        self._client, self._folder = client, folder
        self._tasks: dict[str, Task] = {}
        self._numbers = _missing(folder / "acknowledged.jsonl")

    async def play_for_ever(self) -> None:
        await self._learn_tasks()
        async with asyncio.TaskGroup() as several:
            for _ in range(AT_ONCE):
                several.create_task(self._play_one_by_one())

    async def _learn_tasks(self) -> None:
        while not self._tasks.keys() >= set(NAMES):
            try:
                await self._client.refresh()
                for name in self._client.environments().keys() - self._tasks.keys():
                    self._tasks[name] = (await self._client.tasks(name, "train"))[0]
            except LudusError as error:
                self._write("failures.jsonl", cause=type(error).__name__, named=True, message=str(error))
            await asyncio.sleep(0.1)

    async def _play_one_by_one(self) -> None:
        for number in self._numbers:
            while not await self._attempt(number):
                await asyncio.sleep(0.02)

    async def _attempt(self, number: int) -> bool:
        name, attempt, began = NAMES[number % len(NAMES)], secrets.token_hex(6), time.monotonic()
        try:
            said, session_id = await self._play(name, number, attempt)
        except Exception as error:  # a cause without a name of ours is for the judge to find
            named = isinstance(error, LudusError)
            failure = {"cause": type(error).__name__, "named": named, "message": str(error)}
            self._write("failures.jsonl", number=number, attempt=attempt, environment=name, **failure)
            return False
        about = {"environment": name, "session": session_id, "began": began}
        self._write("acknowledged.jsonl", number=number, attempt=attempt, said=said, **about)
        return True

    async def _play(self, name: str, number: int, attempt: str) -> tuple[list[str], str]:
        opening = self._client.open(self._tasks[name], seed=number, timeout_s=10)
        session = await _in_time(opening, f"open {name}")
        if (
            number % 2
        ):  # as if the worker could not be reached from here: turns are passed on, and repeated when a controller is killed
            session.connection = self._client.controller
        said: list[str] = []
        try:
            await _in_time(session.start(), f"start {name}")
            while True:
                action = Action(content=f"{number} {attempt} {len(said)}")
                observation = await _in_time(session.act(action), f"act {len(said)} {name}")
                said.append("".join(str(message.content) for message in observation.messages))
                if observation.done:
                    return said, session._opened.session_id
        finally:
            await _in_time(session.close(), f"close {name}")

    def _write(self, file: str, **fields: Any) -> None:
        with (self._folder / file).open("ab", buffering=0) as opened:
            opened.write(json.dumps(fields).encode() + b"\n")
            os.fsync(opened.fileno())


async def _in_time(call: Awaitable[T], what: str) -> T:
    clock = asyncio.timeout(HANG_S)
    try:
        async with clock:
            return await call
    except TimeoutError:
        if clock.expired():
            raise Hang(f"{what} had no answer and no failure within {HANG_S:g} s") from None
        raise


def _missing(file: Path) -> Iterator[int]:
    lines = file.read_text().splitlines() if file.exists() else []
    there = {json.loads(line)["number"] for line in lines}
    return (number for number in itertools.count() if number not in there)


async def main(url: str, folder: Path) -> None:
    client = RemoteClient(url, lease_s=LEASE_S, wait_s=20.0, patience_s=20.0)
    await Player(client, folder).play_for_ever()


if __name__ == "__main__":
    die_with(int(os.environ["CHAOS_PARENT"]))
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
