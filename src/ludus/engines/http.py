"""Requests to an OpenAI-compatible server. Promise: an error says what went wrong, and a request is
repeated only if the server certainly did no work for it."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import httpx

from ludus.errors import EngineFailed, EngineLost, describe

ATTEMPTS = 4
BACKOFF_S = 0.25
BUSY = frozenset({429, 502, 503, 504})
KEY = "LUDUS_API_KEY"
"""Variable with the server's key, if it wants one: a secret is never part of a run file."""


class Wire:
    """To `model` of the server at `url`, or, if that is empty, to the only one it serves. At most
    `max_running` requests at a time."""

    def __init__(self, url: str, *, model: str = "", max_running: int = 64, timeout_s: float = 600.0) -> None:
        self.url, self._model = url.rstrip("/"), model
        key = os.environ.get(KEY, "")
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(timeout_s, connect=10.0, pool=None),  # waits for a free one
            limits=httpx.Limits(max_connections=max_running, max_keepalive_connections=max_running),
        )

    async def choice(self, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The answer's only choice, and the server's token counts."""
        answer = await self.request("POST", path, {"model": await self.model_name(), **body})
        choices, usage = answer.get("choices"), answer.get("usage")
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise self.lacks("exactly one choice", f"is it an OpenAI-compatible {path} endpoint?")
        return choices[0], usage if isinstance(usage, dict) else {}

    async def model_name(self) -> str:
        if not self._model:
            listed = (await self.request("GET", "/models")).get("data") or []
            if not isinstance(listed, list) or not all(isinstance(each, dict) and "id" in each for each in listed):
                raise self.lacks("the names of its models", "tell which one to ask for (engine.model)")
            names = [str(entry["id"]) for entry in listed]
            if len(names) != 1:
                raise EngineFailed(
                    f"the server at {self.url} serves {', '.join(names) or 'nothing'}; expected one model, or to be "
                    "told which (engine.model)"
                )
            self._model = names[0]
        return self._model

    async def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Retried if the server did no work or is busy; not after a timeout: it may still work."""
        problem = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(BACKOFF_S * 2 ** (attempt - 1))
            try:
                response = await self._client.request(method, self.url + path, json=body)
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.RemoteProtocolError) as error:
                problem = describe(error)
                continue
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise EngineFailed(f"{method} {self.url}{path}: {describe(error)}") from error
            if response.status_code not in BUSY:
                return _json_object(response)
            problem = f"status {response.status_code}"
        raise EngineLost(
            f"{method} {self.url}{path}: {problem}, {ATTEMPTS} times; is the server up, and engine.url right?"
        )

    async def close(self) -> None:
        await self._client.aclose()

    def lacks(self, what: str, remedy: str) -> EngineFailed:
        return EngineFailed(f"the answer of the server at {self.url} lacks {what}; {remedy}")


def _json_object(response: httpx.Response) -> dict[str, Any]:
    where, status = f"{response.request.method} {response.request.url}", response.status_code
    if status != 200:
        remedy = f"; put the server's key into {KEY}" if status in (401, 403) else ""
        raise EngineFailed(f"{where}: status {status}: {response.text[:500]}{remedy}")
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise EngineFailed(
            f"{where}: expected a JSON object, got {response.text[:200]!r}; is engine.url the base URL, ending in /v1?"
        )
    return answer
