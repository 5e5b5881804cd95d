"""An AgentGym server over HTTP. Promise: no two live sessions share an instance.

The server reports errors with status 200 and the key `error`. It never expires instances, and some
families have no close: their instances are reused.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import httpx

from ludus.adapters.outside import MAX_ANSWER_BYTES, as_text, read_json
from ludus.errors import EnvironmentFailed, describe

TRIES, BUSY_S = 5, 0.1
"""Tries and wait after status 503, which means that the server has not acted."""
WAIT_S = 0.05
"""How often a session looks for a free instance if the server creates no more."""
_log = logging.getLogger(__name__)


class Server:
    def __init__(self, url: str) -> None:
        self.url = url
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()

    async def ask(self, path: str, **request: Any) -> Any:
        """POST with `body`, or GET with `query`."""
        return self.clean(await self.exchange(path, **request), path=path)

    def clean(self, answer: Any, *, path: str) -> Any:
        if says_error(answer):
            raise EnvironmentFailed(f"{self.url}/{path} answered an error: {as_text(answer['error'])[:300]}")
        return answer

    async def exchange(self, path: str, **request: Any) -> Any:
        """The answer, which may be an error."""
        return self._read(path, *await self._send(path, **request))

    async def close(self, body: Mapping[str, Any]) -> bool:
        """False if the server has no close, which depends on family and version."""
        status, answer = await self._send("close", body=body)
        if status in (404, 405):
            return False
        if status != 200 or answer.lstrip().startswith(b"{"):  # some answer with a bare word
            self.clean(self._read("close", status, answer), path="close")
        return True

    def _read(self, path: str, status: int, answer: bytes) -> Any:
        where = f"{self.url}/{path}"
        if status != 200:
            hint = "; is the URL right, and the family?" if status in (404, 405, 422) else ""
            raise EnvironmentFailed(f"{where} answered {status}: {answer[:200]!r}{hint}")
        return read_json(answer, where=where)

    async def _send(self, path: str, *, body: Any = None, query: Any = None) -> tuple[int, bytes]:
        where, client, method = f"{self.url}/{path}", self._client(), "GET" if body is None else "POST"
        for _ in range(TRIES):
            answer = bytearray()
            try:
                async with client.stream(method, where, json=body, params=query) as response:
                    async for chunk in response.aiter_bytes():
                        answer += chunk
                        if len(answer) > MAX_ANSWER_BYTES:
                            raise EnvironmentFailed(f"{where} answered more than {MAX_ANSWER_BYTES} bytes")
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise EnvironmentFailed(f"{where} cannot be reached: {describe(error)}") from error
            if response.status_code != 503:
                break
            await asyncio.sleep(BUSY_S)
        return response.status_code, bytes(answer)

    def _client(self) -> httpx.AsyncClient:
        """One pool of connections per event loop: they cannot move between loops."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = httpx.AsyncClient(
                verify=self.url.startswith("https:"),  # reading certificates takes 0.1 s
                # no read timeout: the run limits a turn and cancels the call
                timeout=httpx.Timeout(None, connect=10.0),
                # idle connections expire before uvicorn drops them (5 s)
                limits=httpx.Limits(max_connections=512, max_keepalive_connections=512, keepalive_expiry=2.0),
            )
        return self._clients[loop]


def says_error(answer: Any) -> bool:
    return isinstance(answer, dict) and answer.get("error") is not None


class Instances:
    """This process's instances of one server. `num_lost` of them were left on the server."""

    def __init__(self, create: Callable[[], Awaitable[int]]) -> None:
        self._create = create
        self._idle: deque[int] = deque()
        self._held: set[int] = set()
        self._full = False
        self.num_created = 0
        self.num_lost = 0

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    async def take(self) -> int:
        """An instance that no other session holds; waits for one if the server creates no more."""
        while True:
            if self._idle:
                instance = self._idle.popleft()  # the longest idle: a broken one rests
                self._held.add(instance)
                return instance
            if not self._full:
                instance = await self._made()
                if instance not in self._held:
                    if instance in self._idle:  # given back while the server was still answering
                        self._idle.remove(instance)
                    else:
                        self.num_created += 1
                    self._held.add(instance)
                    return instance
                # from the ninth on, SQLGym returns an id that is in use
                self._full = True
                _log.info("the server gave instance %d twice: sessions now wait for a free one", instance)
            await asyncio.sleep(WAIT_S)

    async def _made(self) -> int:
        try:
            return await self._create()
        except asyncio.CancelledError:  # it may exist by now, with a number that we never get
            self.num_lost += 1
            raise

    def give_back(self, instance: int) -> None:
        self._held.discard(instance)
        self._idle.append(instance)

    def closed(self, instance: int) -> None:
        self._held.discard(instance)
        self._full = False

    def lost(self, instance: int) -> None:
        """It could not be closed, or its state is unknown; the server keeps it."""
        self.closed(instance)
        self.num_lost += 1
        _log.warning("instance %d was left on the server; %d so far", instance, self.num_lost)
