"""What a call holds is freed, whenever its caller goes away."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from ludus.hosting.threads import Threads


def freed_after(cancel_waiter) -> list[str]:
    """What `afterwards` was given when the caller of a call that returned "held" was cancelled."""
    freed: list[str] = []

    async def main():
        threads, returning = Threads(), threading.Event()
        call = threads.begin(lambda: returning.wait(60) and "held")
        call.afterwards = freed.append
        await cancel_waiter(threads, call, returning)
        for _ in range(6000):
            if freed:
                break
            await asyncio.sleep(0.01)
        threads.close()

    asyncio.run(main())
    return freed


def test_a_call_that_outlives_its_caller_is_freed_when_it_returns():
    async def cancel(threads, call, returning):
        waiter = asyncio.create_task(threads.finish(call))
        await asyncio.sleep(0.05)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        returning.set()

    assert freed_after(cancel) == ["held"]


def test_a_result_whose_caller_is_cancelled_while_it_is_on_its_way_is_freed():
    async def cancel(threads, call, returning):
        waiter: asyncio.Task
        call.future.add_done_callback(lambda _: waiter.cancel())  # before the waiter's own, so it is cancelled first
        waiter = asyncio.create_task(threads.finish(call))
        await asyncio.sleep(0.02)
        returning.set()
        with pytest.raises(asyncio.CancelledError):
            await waiter

    assert freed_after(cancel) == ["held"]


def test_a_call_that_returns_just_after_its_caller_was_cancelled_is_freed():
    async def cancel(threads, call, returning):
        waiter = asyncio.create_task(threads.finish(call))
        await asyncio.sleep(0.02)
        returning.set()
        time.sleep(0.1)  # the thread returns while the loop is busy ...
        waiter.cancel()  # ... so that the result arrives between this and the waiter's noticing it
        with pytest.raises(asyncio.CancelledError):
            await waiter

    assert freed_after(cancel) == ["held"]
