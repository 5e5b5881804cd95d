"""Calls to an AgentRL worker over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
import msgspec

from ludus.errors import EnvironmentFailed, WorkerLost, describe
from ludus.wire.codec import encode

CALLS: Mapping[str, str] = {
    "start_sample": "POST",
    "interact": "POST",
    "cancel_with_notice": "POST",
    "get_sessions": "GET",
}
"""Every call that we make, with its HTTP method."""
CONNECT_S = 5.0


class Answer(msgspec.Struct, frozen=True):
    """`body` is the decoded JSON; `text` is set where the answer is not JSON."""

    status: int
    body: Any = None
    text: str = ""

    @property
    def detail(self) -> str:
        detail = self.body.get("detail") if isinstance(self.body, Mapping) else None
        return f"{self.status} {detail or self.text}".strip()[:300]


class Wire(Protocol):
    async def call(self, name: str, body: Any = None) -> Answer:
        """Has no time limit; the caller sets one. Raises WorkerLost where the connection fails."""

    async def close(self) -> None: ...


def read_json(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data) if data else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EnvironmentFailed(f"an AgentRL worker answered {data[:80]!r}, which is not JSON: {error}") from None


@dataclass(slots=True)
class _Pool:
    client: httpx.AsyncClient
    in_use: int = 0
    spoilt: bool = False


class HttpWire:
    """After a 500 the worker closes the connection without notice, and the next call on it would
    fail. So the whole pool is left to its calls in progress and replaced."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self._pool = self._new_pool()

    async def call(self, name: str, body: Any = None) -> Answer:
        pool = self._pool
        pool.in_use += 1
        try:
            response = await pool.client.request(
                CALLS[name],
                f"{self.address}/{name}",
                content=None if body is None else encode(body),
                headers={"Content-Type": "application/json"},
            )
            pool.spoilt |= response.status_code >= 500
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise WorkerLost(f"the AgentRL worker at {self.address} cannot be called: {describe(error)}") from None
        finally:
            pool.in_use -= 1
            await self._put_back(pool)
        if response.status_code >= 500:
            return Answer(response.status_code, text=response.text)
        return Answer(response.status_code, body=read_json(response.content))

    async def close(self) -> None:
        await self._pool.client.aclose()

    async def _put_back(self, pool: _Pool) -> None:
        if not pool.spoilt:
            return
        if pool is self._pool:
            self._pool = self._new_pool()
        if not pool.in_use:
            await pool.client.aclose()

    def _new_pool(self) -> _Pool:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        timeout = httpx.Timeout(None, connect=CONNECT_S)
        secure = self.address.startswith("https:")  # loading certificates is slow
        return _Pool(httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False, verify=secure))
