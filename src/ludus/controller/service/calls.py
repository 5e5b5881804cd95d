"""Calls to workers. Promise: each ends, with its answer, a named failure or WorkerLost, also when a link breaks or nobody answers.

A call whose worker's link breaks waits for the worker to join again, and is repeated then. When the worker is given up, every call to it
ends at once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ludus.controller.service.worker_proxy import Worker
from ludus.errors import WorkerLost

T = TypeVar("T")


class Calls:
    """`is_expected`: whether a worker that is not here may still come back."""

    def __init__(self, *, is_expected: Callable[[str], bool]) -> None:
        self._is_expected = is_expected
        self._here: dict[str, Worker] = {}
        self._clocks: dict[str, set[asyncio.Timeout]] = defaultdict(set)
        self._returns: dict[str, asyncio.Future[None]] = {}

    def get(self, worker_id: str) -> Worker | None:
        return self._here.get(worker_id)

    def joined(self, worker: Worker) -> None:
        self._here[worker.id] = worker
        waiting = self._returns.pop(worker.id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def left(self, worker: Worker) -> bool:
        """False: this is an old object of a worker that has joined again."""
        if self._here.get(worker.id) is not worker:
            return False
        del self._here[worker.id]
        return True

    def give_up(self, worker_id: str) -> None:
        worker = self._here.pop(worker_id, None)
        if worker is not None:
            worker.leave()
        now = asyncio.get_running_loop().time()
        for clock in self._clocks.pop(worker_id, set()):
            if not clock.expired():
                clock.reschedule(now)
        self._returns.pop(worker_id, None)

    async def call(self, worker_id: str, what: Callable[[Worker], Awaitable[T]], *, limit_s: float) -> T:
        clock = asyncio.timeout(limit_s)
        clocks = self._clocks[worker_id]
        clocks.add(clock)
        try:
            async with clock:
                return await self._persist(worker_id, what)
        except TimeoutError:
            if not clock.expired():
                raise
            if not self._is_expected(worker_id):
                raise WorkerLost(f"worker {worker_id} was lost") from None
            raise WorkerLost(f"worker {worker_id} did not answer within {limit_s:g} s") from None
        finally:
            clocks.discard(clock)

    async def _persist(self, worker_id: str, what: Callable[[Worker], Awaitable[T]]) -> T:
        while True:
            worker = self._here.get(worker_id) or await self._return_of(worker_id)
            try:
                return await what(worker)
            except WorkerLost:
                if self._here.get(worker_id) is worker:
                    raise  # it is there, and says so itself

    async def _return_of(self, worker_id: str) -> Worker:
        if not self._is_expected(worker_id):
            raise WorkerLost(f"worker {worker_id} was lost")
        future = self._returns.get(worker_id)
        if future is None:
            future = self._returns[worker_id] = asyncio.get_running_loop().create_future()
        await asyncio.shield(future)
        return self._here[worker_id]
