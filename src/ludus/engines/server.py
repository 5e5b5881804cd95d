"""An engine behind HTTP: any OpenAI-compatible server that returns token ids and logprobs, such as vLLM. Promise: what the server does not
say is an error that tells what to switch on, never a guess.

Text never passes: the prompt goes out as ids, and what comes back is taken as ids. The fields beyond OpenAI's (`return_token_ids`,
`stop_token_ids`, `ignore_eos`, `top_k`, `prompt_logprobs`) are vLLM's words and stop here.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import httpx

from ludus.engines.engine import Capabilities
from ludus.errors import EngineFailed, describe
from ludus.types import CURRENT, Completion, Sampling

ATTEMPTS = 4
BACKOFF_S = 0.25
BUSY = frozenset({429, 502, 503, 504})

PLAIN = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "frequency_penalty": 0.0}
"""Said aloud, because a server's own defaults (a model's generation_config) would change the distribution behind our back."""


class ServerEngine:
    """Speaks as `model` of the server at `url`, or, if that is empty, as the only one it serves.

    The weights are the server's: `version` is what the caller knows them to be. At most `max_running` requests are under way at a time.
    """

    capabilities = Capabilities(policies=False, load=False, score=True)

    def __init__(
        self, url: str, *, model: str = "", max_running: int = 64, version: int = 0, timeout_s: float = 600.0
    ) -> None:
        self._url, self._model, self._version = url.rstrip("/"), model, version
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(timeout_s, connect=10.0, pool=None),  # who finds no connection free waits for one
            limits=httpx.Limits(max_connections=max_running, max_keepalive_connections=max_running),
        )

    async def generate(
        self, ids: Sequence[int], *, sampling: Sampling, session_id: str, policy: str = CURRENT
    ) -> Completion:
        self._check(policy, temperature=sampling.temperature)
        answer = await self._complete(
            ids,
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            seed=sampling.seed,
            stop_token_ids=list(sampling.stop_ids),
            ignore_eos=True,  # only the ids of `stop_token_ids` end a generation
            logprobs=1,
            return_token_ids=True,
            **PLAIN,
        )
        return self._completion(answer, sampling)

    async def score(self, ids: Sequence[int], *, policy: str = CURRENT, temperature: float = 1.0) -> list[float]:
        self._check(policy, temperature=temperature)
        choice = await self._complete(ids, max_tokens=1, temperature=0.0, prompt_logprobs=1)
        rows = choice.get("prompt_logprobs")
        if not isinstance(rows, list) or len(rows) != len(ids):
            raise self._lacks(
                "prompt_logprobs", "the probe check needs them; use a server that scores prompts, such as vLLM"
            )
        return [
            self._finite(row.get(str(token), {}).get("logprob")) for token, row in zip(ids[1:], rows[1:], strict=True)
        ]

    async def load(self, version: int, *, policy: str = CURRENT) -> None:
        raise EngineFailed(
            f"the server at {self._url} cannot load version {version}: loading over HTTP is not supported; "
            "train with engine.kind 'embedded'"
        )

    async def release(self, session_id: str) -> None:
        """Nothing to do: the server keeps its own prefix cache."""

    async def close(self) -> None:
        await self._client.aclose()

    def _check(self, policy: str, *, temperature: float) -> None:
        if policy != CURRENT:
            raise EngineFailed(f"the server at {self._url} speaks as one policy, {CURRENT!r}; got {policy!r}")
        if temperature not in (0.0, 1.0):
            raise EngineFailed(
                f"temperature is {temperature}, but servers report the logprobs of temperature 1; use 0 or 1, or engine.kind 'embedded'"
            )

    def _completion(self, choice: dict[str, Any], sampling: Sampling) -> Completion:
        ids = choice.get("token_ids")
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
        if not isinstance(ids, list) or not ids:
            raise self._lacks("token_ids", "use a server that knows return_token_ids (vLLM does)")
        if not isinstance(logprobs, list) or len(logprobs) != len(ids):
            raise self._lacks(
                "one logprob for each token", "check that logprobs are switched on (vLLM: --max-logprobs above 0)"
            )
        stopped, last = choice.get("finish_reason") == "stop", ids[-1]
        if (last not in sampling.stop_ids) if stopped else (len(ids) != sampling.max_tokens):
            raise EngineFailed(
                f"the server at {self._url} ended with {choice.get('finish_reason')!r} after {len(ids)} tokens, the last {last}; expected "
                f"{sampling.max_tokens} or a stop id of {list(sampling.stop_ids)}. It must honour stop_token_ids and return the token."
            )
        return Completion(
            ids=tuple(int(token) for token in ids),
            logprobs=tuple(self._finite(logprob) for logprob in logprobs),
            versions=(self._version,) * len(ids),
            stop="end" if stopped else "length",
        )

    async def _complete(self, ids: Sequence[int], **options: Any) -> dict[str, Any]:
        body = {"model": await self._model_name(), "prompt": [int(token) for token in ids], **options}
        answer = await self._request("POST", "/completions", body)
        choices = answer.get("choices")
        if not isinstance(choices, list) or len(choices) != 1:
            raise self._lacks("exactly one choice", "is it an OpenAI-compatible completions endpoint?")
        choice: dict[str, Any] = choices[0]
        return choice

    async def _model_name(self) -> str:
        if not self._model:
            listed = (await self._request("GET", "/models")).get("data") or []
            if len(listed) != 1:
                names = ", ".join(str(entry.get("id")) for entry in listed) or "nothing"
                raise EngineFailed(f"the server at {self._url} serves {names}; expected one model, or to be told which")
            self._model = str(listed[0]["id"])
        return self._model

    async def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Retried where the server surely did no work for us, or says that it is busy; a timeout is not: it may be working still."""
        problem = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(BACKOFF_S * 2 ** (attempt - 1))
            try:
                response = await self._client.request(method, self._url + path, json=body)
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.RemoteProtocolError) as error:
                problem = describe(error)
                continue
            except httpx.HTTPError as error:
                raise EngineFailed(f"{method} {self._url}{path}: {describe(error)}") from error
            if response.status_code not in BUSY:
                return self._answer(response)
            problem = f"status {response.status_code}"
        raise EngineFailed(
            f"{method} {self._url}{path}: {problem}, {ATTEMPTS} times; is the server up, and engine.url right?"
        )

    def _answer(self, response: httpx.Response) -> dict[str, Any]:
        where = f"{response.request.method} {response.request.url}"
        if response.status_code != 200:
            raise EngineFailed(f"{where}: status {response.status_code}: {response.text[:500]}")
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise EngineFailed(
                f"{where}: expected a JSON object, got {response.text[:200]!r}; is engine.url the base URL, ending in /v1?"
            )
        return answer

    def _finite(self, logprob: Any) -> float:
        if not isinstance(logprob, int | float) or not math.isfinite(logprob):
            raise EngineFailed(f"the server at {self._url} gave {logprob!r} for a logprob; expected a finite number")
        return float(logprob)

    def _lacks(self, what: str, remedy: str) -> EngineFailed:
        return EngineFailed(f"the answer of the server at {self._url} lacks {what}; {remedy}")
