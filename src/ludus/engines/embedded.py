"""The engine in this process: one thread that schedules, computes and draws. Promise: a call
returns, raises EngineFailed or is cancelled; it never hangs, and every token carries its version.

    generate ─▶ inbox ─▶ thread: [ commands · plan · copies · passes · advance ] ─▶ futures

Commands (new requests, cancellations, loads, scores) run in the thread between two iterations, so
nothing needs a lock. The event loop is woken once per iteration.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
import warnings
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ludus.config import EngineConfig
from ludus.engines.engine import Capabilities, EngineStats
from ludus.engines.pace import MANY, Pace
from ludus.engines.plan import NOTHING, Collect, Pass, Request
from ludus.engines.policies import Policies
from ludus.engines.schedule import Schedule
from ludus.engines.speculation import Speculator
from ludus.errors import EngineFailed, LudusError, border, describe
from ludus.models.faults import is_lost, is_out_of_memory, lost
from ludus.types import CURRENT, Completion, Sampling
from ludus.weights.channel import Source

T = TypeVar("T")
Call = asyncio.Future[Any]
"""What the caller of a method awaits."""
GATHER_S, QUIET_S = 0.005, 0.001
"""How long a GPU waits for the next turns of sequences that ended together, in all and for each."""
SWITCH_S, GPU_SWITCH_S = 0.0002, 0.00002
"""The interpreter's switch interval: how long another thread may run Python while one waits to
launch its next kernel. With Python's default of 5 ms, launches wait several times as long as they
take. Less on a GPU, where a launch is short."""


class EmbeddedEngine:
    """Serves `model`, which it now owns, as `current`. `max_tokens` bounds one session."""

    capabilities = Capabilities(policies=True, load=True, score=True)

    def __init__(self, model: PreTrainedModel, *, config: EngineConfig, max_tokens: int, version: int = 0) -> None:
        on_gpu = _is_cuda(model.device) and not config.deterministic
        config = config.sized(on_gpu=on_gpu)
        num_rows = max(config.max_cached, config.max_running)
        decode_steps = MANY if on_gpu else 1
        self._pace = Pace() if on_gpu else None
        if on_gpu:
            sys.setswitchinterval(min(GPU_SWITCH_S, sys.getswitchinterval()))
            from ludus.engines.cuda import CudaPolicies  # needs Triton

            self._policies: Policies = CudaPolicies(
                model, config=config, num_rows=num_rows, max_tokens=max_tokens, decode_steps=decode_steps
            )
        else:
            self._policies = Policies(model, num_rows=num_rows, max_tokens=max_tokens)
        self._schedule = Schedule(
            num_rows=num_rows,
            row_tokens=max_tokens,
            max_running=config.max_running,
            prefill_tokens=config.prefill_tokens,
            deterministic=config.deterministic,
            decode_steps=decode_steps,
            pages=self._policies.make_pages(),
            speculator=None if on_gpu or config.deterministic else Speculator(),
        )
        if self._pace is not None:
            self._schedule.steps = self._pace.steps
        self._schedule.loaded(CURRENT, version=version)
        self._threads = config.threads
        self._room = asyncio.Semaphore(config.max_waiting)
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._outbox: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}
        self._calls: set[Call] = set()
        self._queued: set[Call] = set()  # generations that hold one of the places in `_room`
        self._generations: dict[Request, Call] = {}
        self._in_flight: list[tuple[Pass, Collect]] = []
        self._failure: EngineFailed | None = None
        self._gate = threading.Lock()  # no call may be accepted after the thread's end
        self._closing = self._has_shrunk = False
        self._num_sampled = self._num_prefilled = self._num_ended = self._num_loads = 0
        self._busy_s = self._device_s = self._load_s = 0.0
        self._thread = threading.Thread(target=self._run, name="ludus-engine", daemon=True)
        self._thread.start()

    # ----------------------------------------------------------------- in the caller's event loop

    async def generate(
        self, ids: Sequence[int], *, sampling: Sampling, session_id: str, policy: str = CURRENT
    ) -> Completion:
        request = Request(self._tokens(ids, what=f"session {session_id}: the prompt"), sampling, session_id, policy)
        self._policies.model(policy)
        if sampling.max_tokens < 1 or sampling.temperature < 0:
            raise EngineFailed(f"got {sampling}; max_tokens must be at least 1 and temperature at least 0")
        self._schedule.fits(request)
        await self._room.acquire()
        call: Call = asyncio.get_running_loop().create_future()
        self._queued.add(call)
        try:
            self._submit(lambda: self._add(request, call), call=call)
        except EngineFailed:
            self._queued.discard(call)
            self._room.release()  # the next in line must come here and fail too
            raise
        try:
            completion: Completion = await call
        except asyncio.CancelledError:
            self._inbox.put(lambda: self._cancel(request))
            raise
        return completion

    async def score(self, ids: Sequence[int], *, policy: str = CURRENT, temperature: float = 1.0) -> list[float]:
        tokens = self._tokens(ids, what="scored tokens")
        self._policies.model(policy)
        if len(tokens) > self._policies.most_scored:
            raise EngineFailed(
                f"{len(tokens)} tokens cannot be scored at once: the engine keeps {self._policies.most_scored} per "
                "session; raise the engine's max_tokens (rollout.max_tokens), or give fewer"
            )
        if len(tokens) == 1:
            return []
        return await self._between_steps(lambda: self._policies.score(tokens, policy=policy, temperature=temperature))

    async def load(self, version: int, *, policy: str = CURRENT, source: Source) -> None:
        self._policies.model(policy)
        tensors = await self._fetch(version, source)
        await self._between_steps(lambda: self._install(policy, version, tensors))

    async def add_policy(self, name: str, *, version: int, source: Source) -> None:
        tensors = await self._fetch(version, source)
        model = await asyncio.to_thread(self._policies.spare)

        def add() -> None:
            self._policies.add(name, model)
            self._install(name, version, tensors)

        await self._between_steps(add)

    async def release(self, session_id: str) -> None:
        self._inbox.put(lambda: self._schedule.release(session_id))

    async def ended(self) -> None:
        call: Call = asyncio.get_running_loop().create_future()
        self._submit(lambda: None, call=call)
        await call

    async def close(self) -> None:
        self._closing = True
        self._inbox.put(lambda: None)
        await asyncio.to_thread(self._thread.join)

    def stats(self) -> EngineStats:
        return EngineStats(
            tokens=self._num_sampled,
            prefill_computed=self._num_prefilled,
            prefill_reused=self._schedule.num_reused,
            busy_s=self._busy_s,
            device_s=self._device_s,
            load_s=self._load_s,
            loads=self._num_loads,
            preempted=self._schedule.num_preempted,
            drafted=self._schedule.num_drafted,
            drafts_kept=self._schedule.num_kept,
            running=len(self._schedule.running),
            waiting=len(self._schedule.waiting),
        )

    def _tokens(self, ids: Sequence[int], *, what: str) -> list[int]:
        """Checks that each of `ids` is a token; in C, since `ids` is the whole conversation."""
        try:
            tokens = array("I", ids)
            if tokens and np.frombuffer(tokens, np.uintc).max() < self._policies.vocab_size:
                return tokens.tolist()
        except OverflowError:
            pass
        got = f"ids from {min(ids)} to {max(ids)}" if len(ids) else "no tokens"
        raise EngineFailed(f"{what}: got {got}; expected at least one id, each in 0 .. {self._policies.vocab_size - 1}")

    async def _fetch(self, version: int, source: Source) -> Mapping[str, Tensor]:
        with border(EngineFailed, f"version {version} could not be fetched"):
            tensors = await asyncio.to_thread(source.fetch, version)
        await asyncio.to_thread(self._policies.check, tensors, version=version)
        return tensors

    async def _between_steps(self, action: Callable[[], T]) -> T:
        """Runs `action` in the engine's thread. Any error but a LudusError ends the engine."""
        call: Call = asyncio.get_running_loop().create_future()

        def after_collecting() -> T:
            began = time.perf_counter()
            self._collect_all()  # tokens in flight belong to the weights they were launched with
            self._busy_s += time.perf_counter() - began
            return action()

        def run() -> None:
            try:
                self._settle(call, result=self._within_memory(after_collecting))
            except LudusError as error:
                self._settle(call, error=error)

        self._submit(run, call=call)
        result: T = await call
        return result

    def _submit(self, command: Callable[[], None], *, call: Call) -> None:
        with self._gate:
            if self._failure is not None:
                raise EngineFailed(str(self._failure)) from self._failure.__cause__
            self._calls.add(call)
            self._inbox.put(command)

    # --------------------------------------------------------------------- in the engine's thread

    def _run(self) -> None:
        failure = EngineFailed("the engine is closed")
        try:
            if self._threads:
                torch.set_num_threads(self._threads)  # of this thread alone
            with self._policies.at_home(), torch.inference_mode():
                while self._take_commands():
                    self._within_memory(self._step)
        except EngineFailed as error:
            failure = error
        except BaseException as error:  # noqa: BLE001
            cause = describe(error)
            died = lost(self._policies.device, cause) if is_lost(error) else f"the engine's thread died: {cause}"
            failure = EngineFailed(died)
            failure.__cause__ = error
        self._end(failure)

    def _take_commands(self) -> bool:
        """Runs the commands that came in. Without work, warms up and then sleeps. False: close."""
        block = not (self._schedule.running or self._schedule.waiting)
        while block and self._inbox.empty() and self._policies.warm():
            pass
        patience_s = self._patience_s()
        give_up = math.inf if block else time.perf_counter() + patience_s
        while not self._closing:
            left = give_up - time.perf_counter()
            try:
                command = self._inbox.get(block=left > 0, timeout=None if block else min(QUIET_S, max(0.0, left)))
            except Empty:
                break
            command()
            if block:
                block, give_up = False, time.perf_counter() + patience_s
        self._deliver()
        return not self._closing

    def _within_memory(self, action: Callable[[], T]) -> T:
        """When the device runs out of memory, halves the cache, once, and tries again."""
        try:
            return action()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            failure = EngineFailed(
                f"the engine ran out of memory on {self._policies.device}: {describe(error)}. Lower engine.memory, "
                "engine.prefill_tokens or engine.max_running, or give the trainer a device of its own (devices)"
            )
            failure.__cause__ = error.with_traceback(None)  # its frames keep tensors alive
        if self._has_shrunk or not self._policies.shrink():
            raise failure
        self._has_shrunk = True
        warnings.warn(f"{failure}. Continuing with half the cache.", stacklevel=2)
        pages = self._policies.make_pages()
        assert pages is not None, "only pages can be shrunk"
        self._in_flight.clear()
        self._schedule.start_over(pages)
        return self._within_memory(action)

    def _patience_s(self) -> float:
        """Longer when most sequences have just ended, so that their next turns share a pass."""
        most_ended = self._num_ended >= len(self._schedule.running)
        self._num_ended = 0
        return GATHER_S if most_ended and self._schedule.decode_steps > 1 else 0.0

    def _step(self) -> None:
        began = time.perf_counter()
        plan = self._schedule.plan()
        for request in plan.admitted:
            self._leave_queue(self._generations[request])
        self._policies.prepare(plan)
        before, self._in_flight = self._in_flight, []
        for planned in plan.passes:
            self._in_flight.append((planned, self._policies.launch(planned)))
            if not self._policies.overlaps:
                self._collect_all()
        # the passes of the last iteration ran while this one was planned
        for planned, collect in before:
            self._collect(planned, collect)
        self._deliver()
        self._busy_s += time.perf_counter() - began

    def _collect_all(self) -> None:
        launched, self._in_flight = self._in_flight, []
        for planned, collect in launched:
            self._collect(planned, collect)

    def _collect(self, planned: Pass, collect: Collect) -> None:
        began = time.perf_counter()
        results = iter(collect())
        if self._pace is not None:
            waited_s = time.perf_counter() - began
            self._device_s += waited_s
            self._pace.collected(waited_s=waited_s, busy_s=self._busy_s, decoded=planned.steps > 1)
            self._schedule.steps = self._pace.steps
        for chunk in planned.chunks:
            drawn = next(results) if chunk.samples else NOTHING
            request = chunk.request
            if chunk not in request.in_flight:
                continue  # it was cancelled, finished or preempted meanwhile
            if chunk.start < request.num_prompt:
                self._num_prefilled += min(chunk.end, request.num_prompt) - chunk.start
            if not math.isfinite(sum(drawn[1])):
                self._schedule.advance(chunk)
                self._refuse(request)
                continue
            already = len(request.logprobs)
            completion = self._schedule.advance(chunk, drawn=drawn)
            self._num_sampled += len(request.logprobs) - already
            if completion is not None:
                self._num_ended += 1
                self._settle(self._generations.pop(request), result=completion)

    def _refuse(self, request: Request) -> None:
        version = self._schedule.versions[request.policy]
        error = EngineFailed(
            f"session {request.session_id}: the logits of policy {request.policy!r}, version {version}, are not finite "
            f"after {len(request.ids)} tokens; the weights of that version are broken, see the trainer's gradient norm "
            "before it"
        )
        call = self._generations[request]
        self._cancel(request)
        self._settle(call, error=error)

    def _add(self, request: Request, call: Call) -> None:
        self._generations[request] = call
        self._schedule.add(request)

    def _cancel(self, request: Request) -> None:
        call = self._generations.pop(request, None)
        if call is None:
            return  # it had finished before the cancellation arrived
        if held := self._schedule.cancel(request):
            self._policies.clear(held)
        self._leave_queue(call)
        self._calls.discard(call)

    def _install(self, policy: str, version: int, tensors: Mapping[str, Tensor]) -> None:
        began = time.perf_counter()
        self._policies.install(policy, tensors)
        self._schedule.loaded(policy, version=version)
        self._num_loads += 1
        self._load_s += time.perf_counter() - began

    def _leave_queue(self, call: Call) -> None:
        if call in self._queued:
            self._queued.discard(call)
            self._post(call, self._room.release)

    def _settle(self, call: Call, *, result: Any = None, error: LudusError | None = None) -> None:
        def settle() -> None:
            if call.done():
                return  # cancelled meanwhile
            if error is None:
                call.set_result(result)
            else:
                call.set_exception(error)

        self._calls.discard(call)
        self._post(call, settle)

    def _post(self, call: Call, action: Callable[[], None]) -> None:
        self._outbox.setdefault(call.get_loop(), []).append(action)

    def _deliver(self) -> None:
        """Wakes the event loop once for everything that happened in an iteration."""
        posted, self._outbox = self._outbox, {}
        for loop, actions in posted.items():
            with suppress(RuntimeError):  # that loop was closed, and its waiting calls with it
                loop.call_soon_threadsafe(_run_all, actions)

    def _end(self, failure: EngineFailed) -> None:
        with self._gate:
            self._failure = failure
            calls = list(self._calls)
        for call in calls:
            self._leave_queue(call)
            error = EngineFailed(str(failure))
            error.__cause__ = failure.__cause__
            self._settle(call, error=error)
        self._deliver()


def _is_cuda(device: torch.device) -> bool:
    return device.type == "cuda"


def _run_all(actions: Sequence[Callable[[], None]]) -> None:
    for action in actions:
        action()
