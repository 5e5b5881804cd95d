"""An engine without a model, for tests. Promise: the same script or seed gives the same tokens.

engine = FakeEngine([[5, 6, END], [7, END]])                        # one completion per turn
engine = FakeEngine(lambda ids, turn: [5, 6, END], latency_s=0.01)  # computed from the prompt
engine = FakeEngine(vocab_size=256)                                 # noise from Sampling.seed
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ludus.engines.engine import Capabilities, EngineStats
from ludus.engines.noise import noise
from ludus.errors import EngineFailed
from ludus.types import CURRENT, Completion, Sampling

if TYPE_CHECKING:
    from ludus.weights.channel import Source

Script = Callable[[Sequence[int], int], Sequence[int]]
"""(prompt ids, turn of the session) -> the ids to return."""


class FakeEngine:
    """Returns what `script` says or, without one, ids below `vocab_size` drawn from Sampling.seed,
    and records what it was asked.

    A scripted completion is cut at `max_tokens`, and ends as "end" when it was not. `fail_on` names
    calls of `generate`, counted from 0, that raise EngineFailed. All logprobs are -1.
    """

    capabilities = Capabilities(policies=True, load=True, score=True)

    def __init__(
        self,
        script: Sequence[Sequence[int]] | Script | None = None,
        *,
        vocab_size: int = 256,
        latency_s: float = 0.0,
        version: int = 0,
        fail_on: Sequence[int] = (),
    ) -> None:
        self._script: Script | None = script if script is None or callable(script) else _turn_by_turn(script)
        self._vocab_size, self._latency_s, self._fail_on = vocab_size, latency_s, frozenset(fail_on)
        self._turns: Counter[str] = Counter()
        self.versions = {CURRENT: version}
        self.prompts: list[tuple[int, ...]] = []  # every prompt, in the order of the calls
        self.loads: list[tuple[str, int]] = []  # (policy, version), in order
        self.released: list[str] = []
        self.closed = False
        self.num_cancelled = 0

    async def generate(
        self, ids: Sequence[int], *, sampling: Sampling, session_id: str, policy: str = CURRENT
    ) -> Completion:
        self._check(policy)
        call, turn = len(self.prompts), self._turns[session_id]
        self.prompts.append(tuple(ids))
        self._turns[session_id] += 1
        try:
            await asyncio.sleep(self._latency_s)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        if call in self._fail_on:
            raise EngineFailed(f"generate call {call} was told to fail")
        wanted = self._noise(len(ids), sampling) if self._script is None else self._script(ids, turn)
        drawn = tuple(wanted[: sampling.max_tokens])
        return Completion(
            ids=drawn,
            logprobs=(-1.0,) * len(drawn),
            versions=(self.versions[policy],) * len(drawn),
            stop="end" if len(drawn) == len(wanted) else "length",
            policy=policy,
        )

    async def score(self, ids: Sequence[int], *, policy: str = CURRENT, temperature: float = 1.0) -> list[float]:
        self._check(policy)
        return [-1.0] * (len(ids) - 1)

    async def load(self, version: int, *, policy: str = CURRENT, source: Source | None = None) -> None:
        self._check(policy)
        self.versions[policy] = version
        self.loads.append((policy, version))

    async def add_policy(self, name: str, *, version: int, source: Source | None = None) -> None:
        self.versions[name] = version

    def stats(self) -> EngineStats:
        return EngineStats(loads=len(self.loads))

    async def ended(self) -> None:
        await asyncio.Event().wait()

    async def release(self, session_id: str) -> None:
        self._turns.pop(session_id, None)
        self.released.append(session_id)

    async def close(self) -> None:
        self.closed = True

    def _noise(self, start: int, sampling: Sampling) -> list[int]:
        uniforms = noise(sampling.seed, start=start, count=sampling.max_tokens + 1)
        drawn = [int(u * self._vocab_size) for u in uniforms]
        end = next((i + 1 for i, token in enumerate(drawn) if token in sampling.stop_ids), len(drawn))
        return drawn[:end]

    def _check(self, policy: str) -> None:
        if self.closed:
            raise EngineFailed("the engine is closed")
        if policy not in self.versions:
            raise EngineFailed(f"policy {policy!r} is not served; known: {', '.join(sorted(self.versions))}")


def _turn_by_turn(completions: Sequence[Sequence[int]]) -> Script:
    def script(_: Sequence[int], turn: int) -> Sequence[int]:
        if turn >= len(completions):
            raise EngineFailed(f"the script has {len(completions)} completions, turn {turn} asked for one more")
        return completions[turn]

    return script
