"""Callers over HTTP who hang up. Promise: what nobody waits for any more is given up at once, with its place in the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from ludus.errors import ControllerFailed

T = TypeVar("T")
HUNG_UP = 499


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The request's body must have been read: what is received after it is the hanging up."""
    working, hanging_up = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({working, hanging_up}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ControllerFailed("the client hung up", status=HUNG_UP)
        return working.result()
    finally:
        for task in (working, hanging_up):
            task.cancel()
        await asyncio.gather(working, hanging_up, return_exceptions=True)
