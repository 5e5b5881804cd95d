"""An engine behind HTTP: any OpenAI-compatible server that returns token ids and logprobs, such as
vLLM. Promise: if the server omits something, the error says what to switch on; nothing is guessed.

The prompt is sent as ids, and the answer is read as ids, never as text. The fields beyond OpenAI's
(`return_token_ids`, `stop_token_ids`, `ignore_eos`, `top_k`, `prompt_logprobs`) are vLLM's.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ludus.engines.engine import Capabilities, EngineStats
from ludus.engines.http import Wire
from ludus.errors import EngineFailed
from ludus.types import CURRENT, Completion, Sampling

if TYPE_CHECKING:
    from ludus.weights.channel import Source

PLAIN = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "frequency_penalty": 0.0}
"""Always sent: a server's defaults (a model's generation_config) may change the distribution."""


class ServerEngine(Wire):
    """The weights are the server's: `version` is what the caller knows them to be."""

    capabilities = Capabilities(policies=False, load=False, score=True)

    def __init__(self, url: str, *, version: int = 0, **options: Any) -> None:
        super().__init__(url, **options)
        self._version = version

    async def generate(
        self, ids: Sequence[int], *, sampling: Sampling, session_id: str, policy: str = CURRENT
    ) -> Completion:
        self._check(policy, temperature=sampling.temperature)
        choice = await self._complete(
            prompt=[int(token) for token in ids],
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            seed=sampling.seed,
            stop_token_ids=list(sampling.stop_ids),
            ignore_eos=True,  # only the ids of `stop_token_ids` end a generation
            logprobs=1,
            return_token_ids=True,
            user=session_id,  # a server that keeps a cache by user finds the last turn's
            **PLAIN,
        )
        return self._completion(choice, sampling)

    async def score(self, ids: Sequence[int], *, policy: str = CURRENT, temperature: float = 1.0) -> list[float]:
        self._check(policy, temperature=temperature)
        prompt = [int(token) for token in ids]
        rows = (await self._complete(prompt=prompt, prompt_logprobs=1)).get("prompt_logprobs")
        if not isinstance(rows, list) or len(rows) != len(ids):
            raise self.lacks(
                "prompt_logprobs", "the probe check needs them; use a server that scores prompts, such as vLLM"
            )
        return [
            self._finite(row.get(str(token), {}).get("logprob")) for token, row in zip(ids[1:], rows[1:], strict=True)
        ]

    async def tokenised(self, text: str) -> list[int]:
        """The ids of the server's own tokenizer for `text`, to compare with ours."""
        ids = (await self._complete(prompt=text, return_token_ids=True)).get("prompt_token_ids")
        if not isinstance(ids, list):
            raise self.lacks("prompt_token_ids", "use a server that knows return_token_ids, such as vLLM")
        return [int(token) for token in ids]

    async def load(self, version: int, *, policy: str = CURRENT, source: Source) -> None:
        raise EngineFailed(
            f"the server at {self.url} cannot load version {version}: loading over HTTP is not supported; "
            "train with engine.kind 'embedded'"
        )

    async def add_policy(self, name: str, *, version: int, source: Source) -> None:
        raise EngineFailed(f"the server at {self.url} serves one policy, {CURRENT!r}; got {name!r}")

    def stats(self) -> EngineStats:
        return EngineStats()

    async def ended(self) -> None:
        """A server that cannot be reached fails each call by itself."""
        await asyncio.Event().wait()

    async def release(self, session_id: str) -> None:
        """Nothing to do: the server keeps its own prefix cache."""

    def _check(self, policy: str, *, temperature: float) -> None:
        if policy != CURRENT:
            raise EngineFailed(f"the server at {self.url} speaks as one policy, {CURRENT!r}; got {policy!r}")
        if temperature not in (0.0, 1.0):
            raise EngineFailed(
                f"temperature is {temperature}, but servers report the logprobs of temperature 1; use 0 or 1, or "
                "engine.kind 'embedded'"
            )

    def _completion(self, choice: dict[str, Any], sampling: Sampling) -> Completion:
        ids = choice.get("token_ids")
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
        if not isinstance(ids, list) or not ids:
            raise self.lacks(
                "token_ids", "use a server that knows return_token_ids, such as vLLM, or engine.kind 'chat'"
            )
        if not isinstance(logprobs, list) or len(logprobs) != len(ids):
            raise self.lacks(
                "one logprob for each token", "check that logprobs are switched on (vLLM: --max-logprobs above 0)"
            )
        reason, last = choice.get("finish_reason"), ids[-1]
        stopped = reason == "stop"
        if (last not in sampling.stop_ids) if stopped else (len(ids) != sampling.max_tokens):
            raise EngineFailed(
                f"the server at {self.url} ended with {reason!r} after {len(ids)} tokens, the last {last}; expected "
                f"{sampling.max_tokens} or a stop id of {list(sampling.stop_ids)}. It must honour stop_token_ids."
            )
        return Completion(
            ids=tuple(int(token) for token in ids),
            logprobs=tuple(self._finite(logprob) for logprob in logprobs),
            versions=(self._version,) * len(ids),
            stop="end" if stopped else "length",
        )

    async def _complete(self, **options: Any) -> dict[str, Any]:
        """One greedy token unless `options` say otherwise."""
        choice, _ = await self.choice("/completions", {"max_tokens": 1, "temperature": 0.0, **options})
        return choice

    def _finite(self, logprob: Any) -> float:
        if not isinstance(logprob, int | float) or not math.isfinite(logprob):
            raise EngineFailed(f"the server at {self.url} gave {logprob!r} for a logprob; expected a finite number")
        return float(logprob)
