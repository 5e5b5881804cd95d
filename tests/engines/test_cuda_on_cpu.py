"""The GPU's engine on a CPU: its pages, graphs and failures, with kernels in plain torch and graphs that are run instead of replayed."""

from __future__ import annotations

import asyncio
import importlib
import math
import random
import sys
import threading
import time
from contextlib import contextmanager, nullcontext

import pytest
import torch

import ludus.models
from ludus.engines import embedded as embedded_module
from ludus.engines.plan import Span
from ludus.errors import ConfigError, EngineFailed
from ludus.weights.memory import MemoryChannel
from tests.engines import plain_kernels
from tests.engines.examples import embedded, gap, small_llama, tokens, words

PRETENDED = ("ludus.models.attention.paged", "ludus.engines.graphs", "ludus.engines.cuda")
MAX_TOKENS = 172
EACH = 3
"""Pages of 64 of the longest sequence, with the sixteen that it may be decoded past its end."""


class Replayed:
    def __init__(self, work, **_):
        self.replay = work


@pytest.fixture(autouse=True)
def cuda(monkeypatch):
    """The module engines.cuda, without CUDA. What was imported with plain kernels is gone afterwards."""
    switch_s = sys.getswitchinterval()
    monkeypatch.setitem(sys.modules, "ludus.models.kernels.inference", plain_kernels)
    monkeypatch.setattr(ludus.models, "kernels", plain_kernels, raising=False)
    before = {name: sys.modules.pop(name, None) for name in PRETENDED}
    monkeypatch.setattr(embedded_module, "_is_cuda", lambda device: True)
    module = importlib.import_module("ludus.engines.cuda")
    monkeypatch.setattr(importlib.import_module("ludus.engines.graphs"), "captured", Replayed)
    for name in ("current", "own_stream"):
        monkeypatch.setattr(module, name, lambda device: nullcontext())
    for name, answer in {"graph_pool": None, "synchronise": None, "empty_cache": None, "memory_of": 2**34}.items():
        monkeypatch.setattr(module, name, lambda *_, answer=answer: answer)
    yield module
    sys.setswitchinterval(switch_s)
    for name, old in before.items():
        sys.modules.pop(name)
        if old is not None:
            sys.modules[name] = old


def with_pages(cuda, monkeypatch, count: int) -> None:
    """A device whose memory holds so many pages for rows."""
    monkeypatch.setattr(
        cuda, "memory_of", lambda device: (count + 1 + EACH) * cuda.page_bytes(SHAPE, dtype=torch.float32)
    )


MODEL = small_llama()
SHAPE = ludus.models.attention.cached.Shape.of(MODEL)


async def converse(engine, *, name: int, turns: int) -> float:
    rng = random.Random(name)
    ids, worst = words(rng, 3, 30), 0.0
    for turn in range(turns):
        sampling = tokens(rng.randint(1, 30), seed=100 * name + turn, temperature=float(name % 2))
        completion = await engine.generate(ids, sampling=sampling, session_id=str(name))
        worst = max(worst, gap(MODEL, ids, completion))
        ids = [*ids, *completion.ids, *words(rng, 1, 10)]
    await engine.release(str(name))
    return worst


@pytest.mark.parametrize("count", [4, 7, 1000])
def test_answers_are_those_of_a_plain_forward_however_few_pages_there_are(cuda, monkeypatch, count):
    with_pages(cuda, monkeypatch, count)

    async def main():
        async with embedded(MODEL, max_tokens=MAX_TOKENS, max_running=5, max_cached=8, memory=1.0) as engine:
            gaps = await asyncio.gather(*(converse(engine, name=name, turns=3) for name in range(7)))
            return max(gaps), engine.stats(), engine._policies.num_pages

    worst, stats, num_pages = asyncio.run(main())
    assert worst < 1e-4
    assert num_pages == min(count, 8 * EACH)
    assert (stats.running, stats.waiting) == (0, 0)


def test_the_same_seed_says_the_same_whether_it_had_to_give_way_or_not(cuda, monkeypatch):
    async def main():
        async with embedded(MODEL, max_tokens=MAX_TOKENS, max_running=4, max_cached=4, memory=1.0) as engine:
            calls = (engine.generate([i + 1] * 50, sampling=tokens(90, seed=i), session_id=str(i)) for i in range(3))
            return [completion.ids for completion in await asyncio.gather(*calls)], engine.stats().preempted

    with_pages(cuda, monkeypatch, 12)
    roomy, none = asyncio.run(main())
    with_pages(cuda, monkeypatch, 4)
    tight, some = asyncio.run(main())
    assert none == 0
    assert some > 0
    assert tight == roomy


def sizes_of(engine):
    return [sorted(passes._graphs) for passes in engine._policies._passes_of("current")]


def test_an_engine_without_work_captures_every_graph_it_may_need(cuda):
    async def main():
        async with embedded(MODEL, max_tokens=MAX_TOKENS, max_running=5, max_cached=8, memory=1.0) as engine:
            await engine.generate([1, 2], sampling=tokens(3), session_id="a")
            while engine._policies._warms:
                await asyncio.sleep(0.01)
            warm = sizes_of(engine)
            gaps = await asyncio.gather(*(converse(engine, name=name, turns=3) for name in range(7)))
            return warm, sizes_of(engine), max(gaps)

    (prompts, decodes), later, worst = asyncio.run(main())
    assert decodes == [1, 2, 4, 5]
    assert prompts[:3] == [64, 96, 128]
    assert later == [prompts, decodes], "nothing is captured while somebody waits"
    assert worst < 1e-4


def test_without_memory_for_it_a_graph_is_captured_when_it_is_needed(cuda, monkeypatch):
    graphs, tried = importlib.import_module("ludus.engines.graphs"), []

    def captured(work, **_):
        tried.append(work)
        if len(tried) == 1:
            raise torch.OutOfMemoryError("as ordered")
        return Replayed(work)

    monkeypatch.setattr(graphs, "captured", captured)

    async def main():
        async with embedded(MODEL, max_tokens=MAX_TOKENS, max_running=5, max_cached=8, memory=1.0) as engine:
            while engine._policies._warms:
                await asyncio.sleep(0.01)
            before = sizes_of(engine), engine._policies.num_pages
            return before, await converse(engine, name=1, turns=2), engine._policies.num_pages

    ((prompts, decodes), pages), worst, later = asyncio.run(main())
    assert (prompts, decodes) == ([], [])
    assert worst < 1e-4
    assert later == pages, "the cache is not halved for something nobody waits for"


def test_copies_go_together_unless_one_reads_or_writes_what_another_wrote(cuda):
    def copy(source, target):
        return Span(0, 1, (source,)), Span(0, 1, (target,))

    one, two, chained, again, last = copy(1, 5), copy(1, 6), copy(6, 7), copy(2, 7), copy(5, 1)
    assert list(cuda.at_once([one, two, chained, again, last])) == [[one, two], [chained], [again, last]]
    assert list(cuda.at_once([])) == []


def test_siblings_read_their_prompt_in_the_same_pages_and_a_load_is_seen(cuda):
    channel = MemoryChannel()
    other = small_llama(seed=1)
    channel.publish(1, other.state_dict())
    prompt = list(range(80))

    async def main():
        async with embedded(MODEL, max_tokens=MAX_TOKENS, max_running=4) as engine:
            calls = (engine.generate(prompt, sampling=tokens(3, seed=i), session_id=str(i)) for i in range(4))
            before = await asyncio.gather(*calls)
            reused = engine.stats().prefill_reused
            await engine.load(1, source=channel)
            after = await engine.generate(prompt, sampling=tokens(5), session_id="late")
            scored = await engine.score([*prompt, *after.ids])
            return before, reused, after, scored

    before, reused, after, scored = asyncio.run(main())
    assert reused == 3 * 79
    assert max(gap(MODEL, prompt, completion) for completion in before) < 1e-4
    assert gap(other, prompt, after) < 1e-4
    assert scored[-5:] == pytest.approx(after.logprobs, abs=1e-4)


def during_launch(cuda, monkeypatch, *, number, act):
    """While the so-many-th pass of the engine is in flight, `act` happens, and what it asks of the engine has come in."""
    real, launches = cuda.CudaPolicies.launch, []

    def launch(self, planned, **options):
        launches.append(planned)
        collect = real(self, planned, **options)
        if len(launches) == number:
            act()
        return collect

    monkeypatch.setattr(cuda.CudaPolicies, "launch", launch)
    return launches


def wait_until(fact):
    deadline = time.monotonic() + 20
    while not fact():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.001)


def test_tokens_that_are_in_flight_when_weights_are_loaded_have_the_version_that_drew_them(cuda, monkeypatch):
    channel, other = MemoryChannel(), small_llama(seed=5)
    channel.publish(1, other.state_dict())

    async def main():
        async with embedded(MODEL, max_tokens=MAX_TOKENS, max_running=2) as engine:
            loop, loads = asyncio.get_running_loop(), []

            def act():
                loop.call_soon_threadsafe(lambda: loads.append(asyncio.ensure_future(engine.load(1, source=channel))))
                wait_until(lambda: not engine._inbox.empty())

            launches = during_launch(cuda, monkeypatch, number=3, act=act)
            completion = await engine.generate([1, 2, 3], sampling=tokens(60), session_id="a")
            await loads[0]
            return completion, launches

    completion, launches = asyncio.run(main())
    before = sum(planned.steps for planned in launches[:3])
    assert list(completion.versions) == [0] * before + [1] * (60 - before)


def test_a_request_that_is_cancelled_in_flight_leaves_the_others_alone(cuda, monkeypatch):
    async def main():
        async with embedded(MODEL, max_tokens=MAX_TOKENS, max_running=4) as engine:
            loop = asyncio.get_running_loop()
            calls = [
                asyncio.ensure_future(engine.generate([7 + i] * 9, sampling=tokens(50, seed=i), session_id=str(i)))
                for i in range(3)
            ]

            def act():
                loop.call_soon_threadsafe(calls[1].cancel)
                wait_until(lambda: not engine._inbox.empty())

            during_launch(cuda, monkeypatch, number=3, act=act)
            first, cancelled, last = await asyncio.gather(*calls, return_exceptions=True)
            again = await engine.generate([8] * 9, sampling=tokens(50, seed=1), session_id="again")
            return first, cancelled, last, again, engine.stats()

    first, cancelled, last, again, stats = asyncio.run(main())
    assert isinstance(cancelled, asyncio.CancelledError)
    for number, completion in ((0, first), (2, last), (1, again)):
        assert gap(MODEL, [7 + number] * 9, completion) < 1e-4
    assert (stats.running, stats.waiting) == (0, 0)


def test_memory_that_runs_out_once_halves_the_cache_and_loses_nothing(cuda, monkeypatch):
    with_pages(cuda, monkeypatch, 12)
    real, calls = cuda.CudaPolicies.launch, []

    def launch(self, planned, **options):
        calls.append(planned)
        if len(calls) == 4:
            raise torch.OutOfMemoryError("CUDA out of memory, as ordered")
        return real(self, planned, **options)

    monkeypatch.setattr(cuda.CudaPolicies, "launch", launch)

    async def main():
        async with embedded(MODEL, max_tokens=MAX_TOKENS, max_running=4, max_cached=4, memory=1.0) as engine:
            gaps = await asyncio.gather(*(converse(engine, name=name, turns=2) for name in range(5)))
            return max(gaps), engine._policies.num_pages, engine._schedule.pages.count

    with pytest.warns(UserWarning, match="Continuing with half the cache"):
        worst, *counts = asyncio.run(main())
    assert counts == [6, 6]
    assert worst < 1e-4


def test_memory_that_runs_out_again_ends_the_engine_with_what_to_change(cuda, monkeypatch):
    def launch(self, planned, **options):
        raise torch.OutOfMemoryError("CUDA out of memory, as ordered")

    monkeypatch.setattr(cuda.CudaPolicies, "launch", launch)

    async def main():
        async with embedded(MODEL, max_tokens=MAX_TOKENS, max_running=4) as engine:
            await engine.generate([1, 2], sampling=tokens(3), session_id="a")

    with (
        pytest.warns(UserWarning, match="half the cache"),
        pytest.raises(EngineFailed, match=r"ran out of memory on cpu.*as ordered.*Lower engine.memory"),
    ):
        asyncio.run(main())


def test_a_pool_that_cannot_be_allocated_is_tried_at_half_its_size(cuda, monkeypatch):
    real, asked = cuda.PagedCache, []

    def allocate(shape, *, pages, **options):
        if pages > 2:  # else it is the probe of the model
            asked.append(pages)
        if len(asked) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory, as ordered")
        return real(shape, pages=pages, **options)

    monkeypatch.setattr(cuda, "PagedCache", allocate)
    with pytest.warns(UserWarning, match="no memory for 24 pages of keys and values; trying 12"):
        asyncio.run(_say_something())
    assert asked == [1 + 24 + EACH, 1 + 12 + EACH]


async def _say_something(**config):
    async with embedded(MODEL, max_tokens=MAX_TOKENS, max_running=4, max_cached=8, **config) as engine:
        await engine.generate([1, 2], sampling=tokens(3), session_id="a")


def test_a_budget_without_room_for_one_sequence_is_refused_with_what_is_needed(cuda, monkeypatch):
    with_pages(cuda, monkeypatch, EACH - 1)
    with pytest.raises(
        ConfigError, match=r"engine.memory is 1, which holds no sequence of 172 tokens.*rollout.max_tok"
    ):
        asyncio.run(_say_something(memory=1.0))


def test_every_pass_load_and_score_is_on_the_engines_own_stream_and_a_load_is_waited_for_there(cuda, monkeypatch):
    channel, seen, on_stream = MemoryChannel(), [], threading.local()
    channel.publish(1, MODEL.state_dict())

    @contextmanager
    def own_stream(device):
        on_stream.entered = True
        yield

    def noting(name, method):
        def noted(*args, **options):
            seen.append((name, getattr(on_stream, "entered", False)))
            return method(*args, **options)

        return noted

    async def main():
        async with embedded(MODEL, max_tokens=MAX_TOKENS, max_running=2, max_cached=2) as engine:
            monkeypatch.setattr(cuda, "synchronise", noting("wait", lambda device: None))
            await engine.load(1, source=channel)
            await engine.generate([1, 2, 3], sampling=tokens(2), session_id="a")
            await engine.score([1, 2, 3])

    monkeypatch.setattr(cuda, "own_stream", own_stream)
    for name in ("launch", "install", "score"):
        monkeypatch.setattr(cuda.CudaPolicies, name, noting(name, getattr(cuda.CudaPolicies, name)))
    asyncio.run(main())
    assert [name for name, _ in seen][:2] == ["install", "wait"]
    assert {name for name, _ in seen} == {"install", "wait", "launch", "score"}
    assert all(entered for _, entered in seen)


def test_other_threads_python_keeps_a_gpus_engine_from_its_next_launch_for_a_moment_only(cuda):
    sys.setswitchinterval(0.005)  # Python's own
    asyncio.run(_say_something())
    assert sys.getswitchinterval() <= embedded_module.GPU_SWITCH_S
    sys.setswitchinterval(1e-5)
    asyncio.run(_say_something())
    assert sys.getswitchinterval() == pytest.approx(1e-5), "whoever wants less has it"


def test_more_tokens_than_the_cache_holds_are_refused_when_they_are_asked_for(cuda):
    async def main():
        async with embedded(MODEL, max_tokens=MAX_TOKENS, max_running=2) as engine:
            with pytest.raises(
                EngineFailed, match=r"162 tokens and up to 20 sampled ones are 182.*keeps 172.*max_tokens"
            ):
                await engine.generate([1] * 162, sampling=tokens(20), session_id="a")
            with pytest.raises(EngineFailed, match=r"173 tokens cannot be scored at once.*keeps 172.*max_tokens"):
                await engine.score([1] * 173)
            return await engine.score([1] * 172)

    assert len(asyncio.run(main())) == 171


def test_a_gpu_that_disappears_is_named_to_everybody_who_waits(cuda, monkeypatch):
    def launch(self, planned, **options):
        raise torch.AcceleratorError("CUDA error: an illegal memory access, as ordered")

    monkeypatch.setattr(cuda.CudaPolicies, "launch", launch)
    with pytest.raises(EngineFailed, match=r"cpu stopped answering: .*as ordered.*nvidia-smi.*--resume"):
        asyncio.run(_say_something())


def test_logits_that_are_not_finite_fail_their_request_and_their_pages_are_cleared(cuda, monkeypatch):
    channel = MemoryChannel()
    channel.publish(4, {name: tensor * math.nan for name, tensor in MODEL.state_dict().items()})
    channel.publish(5, MODEL.state_dict())
    with_pages(cuda, monkeypatch, 6)
    prompt = list(range(20))

    async def main():
        async with embedded(MODEL, max_tokens=MAX_TOKENS, max_running=2, max_cached=2, memory=1.0) as engine:
            await engine.load(4, source=channel)
            with pytest.raises(EngineFailed, match="version 4, are not finite"):
                await engine.generate(prompt, sampling=tokens(5), session_id="a")
            await engine.load(5, source=channel)
            clean = all(
                layer.isfinite().all() for pair in engine._policies.pages.layers for layer in (p[1:7] for p in pair)
            )
            return clean, await engine.generate(prompt, sampling=tokens(5), session_id="a")

    clean, completion = asyncio.run(main())
    assert clean
    assert gap(MODEL, prompt, completion) < 1e-4
