"""What goes wrong with an embedded engine, and that nobody is left waiting."""

from __future__ import annotations

import asyncio
import math

import pytest
import torch

from ludus.errors import ConfigError, EngineFailed
from ludus.weights.memory import MemoryChannel
from tests.engines.examples import embedded, gap, small_llama, tokens


async def ends_in(awaitable, *, seconds: float = 20.0):
    """A hang is a failure of the test, not of the test run."""
    return await asyncio.wait_for(awaitable, seconds)


def test_cancelling_the_call_cancels_the_generation_and_frees_its_row():
    model = small_llama()

    async def main():
        async with embedded(model, max_running=1, max_cached=1) as engine:
            running = asyncio.create_task(engine.generate([1, 2], sampling=tokens(250), session_id="a"))
            waiting = asyncio.create_task(engine.generate([1, 2], sampling=tokens(250), session_id="b"))
            while engine.stats().tokens < 3:
                await asyncio.sleep(0.001)
            waiting.cancel()
            running.cancel()
            prompt = list(range(40))
            after = await ends_in(engine.generate(prompt, sampling=tokens(5), session_id="c"))
            for task in (running, waiting):
                with pytest.raises(asyncio.CancelledError):
                    await task
            stats = engine.stats()
            return gap(model, prompt, after), stats

    distance, stats = asyncio.run(main())
    assert distance < 1e-4
    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.tokens < 250


def test_back_pressure_holds_calls_back_and_lets_every_one_through_in_the_end():
    most = 0

    async def main():
        nonlocal most
        async with embedded(small_llama(), max_running=2, max_waiting=3) as engine:
            calls = [
                asyncio.create_task(engine.generate([1, 2, 3], sampling=tokens(5, seed=i), session_id=str(i)))
                for i in range(20)
            ]
            while not all(call.done() for call in calls):
                most = max(most, engine.stats().waiting)
                await asyncio.sleep(0)
            return await ends_in(asyncio.gather(*calls))

    assert len(asyncio.run(main())) == 20
    assert most <= 3


def test_a_cancelled_call_in_the_queue_gives_its_place_to_the_next():
    async def main():
        async with embedded(small_llama(), max_running=1, max_waiting=1) as engine:
            calls = [
                asyncio.create_task(engine.generate([1, 2, 3], sampling=tokens(100, seed=i), session_id=str(i)))
                for i in range(6)
            ]
            await asyncio.sleep(0.02)
            for call in calls[:5]:
                call.cancel()
            return await ends_in(calls[5])

    assert len(asyncio.run(main()).ids) == 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), r"missing model\.layers\.1\.mlp\.up_proj\.weight"),
        (lambda t: t.update({"model.extra": torch.zeros(1)}), r"unknown model\.extra"),
        (lambda t: t.update({"model.norm.weight": torch.zeros(31)}), r"shape \(31,\), expected \(32,\)"),
        (lambda t: t.update({"lm_head.weight": torch.zeros(97, 32)}), r"are one weight .* but differ"),
        (lambda t: [t.pop(name) for name in list(t) if "embed" in name or "lm_head" in name], r"missing model\.embed"),
    ],
)
def test_a_partial_or_foreign_load_is_refused_and_the_old_weights_stay(change, message: str):
    model, channel = small_llama(), MemoryChannel()
    tensors = dict(small_llama(seed=1).state_dict())
    change(tensors)
    channel.publish(1, tensors)
    prompt = list(range(10))

    async def main():
        async with embedded(model) as engine:
            with pytest.raises(EngineFailed, match=message):
                await engine.load(1, source=channel)
            return await engine.generate(prompt, sampling=tokens(5), session_id="a")

    completion = asyncio.run(main())
    assert set(completion.versions) == {0}
    assert gap(model, prompt, completion) < 1e-4


def test_a_version_that_cannot_be_fetched_is_named():
    async def main():
        async with embedded(small_llama()) as engine:
            with pytest.raises(EngineFailed, match="version 3 "):
                await engine.load(3, source=MemoryChannel())

    asyncio.run(main())


def test_logits_that_are_not_finite_fail_the_request_name_the_version_and_poison_nothing():
    model, channel = small_llama(), MemoryChannel()
    broken = {name: tensor * math.nan for name, tensor in model.state_dict().items()}
    channel.publish(4, broken)
    channel.publish(5, model.state_dict())
    prompts = [list(range(start, start + 20)) for start in range(4)]

    async def main():
        async with embedded(model, max_cached=4, max_running=4) as engine:
            await engine.load(4, source=channel)
            calls = (engine.generate(p, sampling=tokens(5), session_id=str(i)) for i, p in enumerate(prompts))
            failures = await ends_in(asyncio.gather(*calls, return_exceptions=True))
            await engine.load(5, source=channel)
            lengths = (3, 9, 6, 12)  # of different lengths, so that they read beyond their own end in the shared ranges
            calls = (
                engine.generate(p[: 5 + n], sampling=tokens(n), session_id=str(i))
                for i, (p, n) in enumerate(zip(prompts, lengths, strict=True))
            )
            return failures, await ends_in(asyncio.gather(*calls))

    failures, completions = asyncio.run(main())
    assert all(isinstance(failure, EngineFailed) and "version 4" in str(failure) for failure in failures)
    assert all(math.isfinite(logprob) for completion in completions for logprob in completion.logprobs)


def test_a_failure_in_the_thread_reaches_everybody_who_waits_and_every_later_call():
    async def main():
        async with embedded(small_llama(), max_running=1, max_waiting=1) as engine:
            calls = [
                asyncio.create_task(engine.generate([1, 2], sampling=tokens(200), session_id=str(i))) for i in range(4)
            ]
            while engine.stats().tokens < 3:
                await asyncio.sleep(0.001)
            engine._policies.cache.keys = None  # the next forward pass raises
            outcomes = await ends_in(asyncio.gather(*calls, return_exceptions=True))
            assert all(isinstance(o, EngineFailed) and "thread died" in str(o) and o.__cause__ for o in outcomes)
            with pytest.raises(EngineFailed, match="thread died"):
                await ends_in(engine.generate([1], sampling=tokens(1), session_id="late"))
            with pytest.raises(EngineFailed, match="thread died"):
                await ends_in(engine.score([1, 2]))
            await ends_in(engine.release("late"))

    asyncio.run(main())


def test_whoever_watches_the_engine_hears_of_its_end():
    async def main():
        async with embedded(small_llama()) as engine:
            watching = asyncio.create_task(engine.ended())
            await engine.generate([1, 2], sampling=tokens(3), session_id="a")
            assert not watching.done()
            engine._policies.cache.keys = None  # the next forward pass raises
            with pytest.raises(EngineFailed, match="thread died"):
                await engine.generate([1, 2], sampling=tokens(3), session_id="b")
            with pytest.raises(EngineFailed, match="thread died"):
                await ends_in(watching)

    asyncio.run(main())


def test_closing_fails_what_is_in_flight_and_may_be_repeated():
    async def main():
        async with embedded(small_llama()) as engine:
            call = asyncio.create_task(engine.generate([1, 2], sampling=tokens(250), session_id="a"))
            await asyncio.sleep(0.01)
            await ends_in(engine.close())
            with pytest.raises(EngineFailed, match="closed"):
                await ends_in(call)
            with pytest.raises(EngineFailed, match="closed"):
                await engine.generate([1], sampling=tokens(1), session_id="b")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("ids", "count", "policy", "message"),
    [
        ([], 5, "current", "no tokens"),
        ([1, 97], 5, "current", r"1 to 97; .* 0 \.\. 96"),
        ([-1], 5, "current", "-1 to -1"),
        ([1], 0, "current", "max_tokens must be at least 1"),
        ([1] * 20, 14, "current", "keeps 32 per session"),
        ([1], 5, "curent", "Did you mean 'current'"),
    ],
)
def test_a_request_that_cannot_be_served_is_told_why(ids: list[int], count: int, policy: str, message: str):
    async def main():
        async with embedded(small_llama(), max_tokens=32) as engine:
            with pytest.raises(EngineFailed, match=message):
                await engine.generate(ids, sampling=tokens(count), session_id="a", policy=policy)

    asyncio.run(main())


def test_a_model_that_cannot_be_served_is_refused_at_start():
    async def main():
        async with embedded(small_llama(), max_tokens=1024):
            pass

    with pytest.raises(ConfigError, match=r"has 512 positions .* 1024"):
        asyncio.run(main())
