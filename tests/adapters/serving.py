"""ASGI apps on loopback: one real server on a free port for all tests of a process, each app under a path of its own."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import uvicorn

_apps: dict[str, Any] = {}
_numbers = itertools.count()


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """The address of `app`, e.g. http://127.0.0.1:40123/7."""
    number = str(next(_numbers))
    _apps[number] = app
    try:
        yield f"{_address()}/{number}"
    finally:
        del _apps[number]


async def _dispatch(scope: Any, receive: Any, send: Any) -> None:
    _, number, *rest = scope["path"].split("/")
    path = "/" + "/".join(rest)
    await _apps[number]({**scope, "path": path, "raw_path": path.encode()}, receive, send)


@cache
def _address() -> str:
    server = uvicorn.Server(uvicorn.Config(_dispatch, host="127.0.0.1", port=0, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
