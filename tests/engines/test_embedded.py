"""The embedded engine against plain forward passes and Transformers' own generation."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch

from ludus.types import Completion
from ludus.weights.memory import MemoryChannel
from tests.engines.examples import embedded, full_logprobs, gap, small_llama, tokens, words


async def play(engine, name: str, *, turns: int, seed: int, check, temperature: float = 1.0) -> list[Completion]:
    """A session of random observations; `check` sees every prompt and completion."""
    rng = random.Random(seed)
    ids, completions = words(rng, 1, 40), []
    for turn in range(turns):
        sampling = tokens(rng.randint(1, 12), seed=seed * 100 + turn, temperature=temperature, stop_ids=(5,))
        completion = await engine.generate(ids, sampling=sampling, session_id=name)
        check(ids, completion)
        completions.append(completion)
        ids = [*ids, *completion.ids, *words(rng, 1, 20)]
    return completions


def test_logprobs_equal_a_plain_forward_over_many_turns_with_reuse_and_eviction():
    model = small_llama()
    gaps = []

    async def main():
        async with embedded(model, max_running=4, max_cached=6, prefill_tokens=16, max_tokens=400) as engine:

            def check(ids, completion):
                gaps.append(gap(model, ids, completion, temperature=1.7))

            sessions = (play(engine, str(i), turns=5, seed=i, check=check, temperature=1.7) for i in range(12))
            await asyncio.gather(*sessions)
            return engine.stats()

    stats = asyncio.run(main())
    assert len(gaps) == 60
    assert max(gaps) < 1e-4
    assert stats.prefill_reused > 0
    assert (stats.running, stats.waiting) == (0, 0)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_greedy_tokens_equal_those_of_transformers_on_random_conversations(kv_heads: int):
    model = small_llama(num_key_value_heads=kv_heads)

    def check(ids, completion):
        prompt = torch.tensor([ids])
        options = {"attention_mask": torch.ones_like(prompt), "pad_token_id": 0, "eos_token_id": None}
        expected = model.generate(prompt, max_new_tokens=len(completion.ids), do_sample=False, **options)
        assert list(completion.ids) == expected[0, len(ids) :].tolist()

    async def main():
        async with embedded(model, max_running=3, prefill_tokens=24) as engine:
            sessions = (play(engine, str(i), turns=3, seed=i, check=check, temperature=0.0) for i in range(4))
            await asyncio.gather(*sessions)

    asyncio.run(main())


def test_score_gives_the_logprobs_of_given_tokens():
    model, ids = small_llama(), list(range(1, 30))

    async def main():
        async with embedded(model) as engine:
            return await engine.score(ids, temperature=0.7), await engine.score([3])

    scores, nothing = asyncio.run(main())
    expected = full_logprobs(model, ids, temperature=0.7).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
    assert (torch.tensor(scores) - expected).abs().max() < 1e-5
    assert nothing == []


def test_a_stop_id_ends_the_generation_and_is_included():
    model, prompt = small_llama(), [1, 2, 3]

    async def main():
        async with embedded(model) as engine:
            free = await engine.generate(prompt, sampling=tokens(12, seed=1), session_id="a")
            stop = free.ids[4]
            sampling = tokens(12, seed=1, stop_ids=(stop,))
            return free, await engine.generate(prompt, sampling=sampling, session_id="b")

    free, stopped = asyncio.run(main())
    first = free.ids.index(free.ids[4])
    assert (free.stop, len(free.ids)) == ("length", 12)
    assert (stopped.stop, stopped.ids) == ("end", free.ids[: first + 1])


def test_the_same_seed_gives_the_same_tokens_whoever_else_is_in_the_batch():
    model, prompt = small_llama(), list(range(20))

    async def main():
        async with embedded(model, max_running=8, prefill_tokens=32) as engine:
            alone = await engine.generate(prompt, sampling=tokens(20, seed=42), session_id="alone")
            crowd = [
                engine.generate(words(random.Random(i), 1, 50), sampling=tokens(30, seed=i), session_id=f"crowd {i}")
                for i in range(7)
            ]
            among, other, *_ = await asyncio.gather(
                engine.generate(prompt, sampling=tokens(20, seed=42), session_id="among"),
                engine.generate(prompt, sampling=tokens(20, seed=43), session_id="other"),
                *crowd,
            )
            return alone, among, other

    alone, among, other = asyncio.run(main())
    assert alone.ids == among.ids
    assert alone.ids != other.ids


def test_promise_9_deterministic_mode_is_bitwise_the_same_whatever_else_runs_and_whatever_was_cached():
    model = small_llama()

    async def conversation(engine, *, crowded: bool) -> list[Completion]:
        sessions = [play(engine, "it", turns=4, seed=3, check=lambda *_: None)]
        if crowded:
            sessions += [play(engine, str(i), turns=4, seed=i, check=lambda *_: None) for i in range(10, 16)]
        return (await asyncio.gather(*sessions))[0]

    async def main(*, crowded: bool, max_cached: int) -> list[Completion]:
        async with embedded(
            model, deterministic=True, max_running=4, max_cached=max_cached, prefill_tokens=32
        ) as engine:
            return await conversation(engine, crowded=crowded)

    alone = asyncio.run(main(crowded=False, max_cached=64))
    assert asyncio.run(main(crowded=True, max_cached=4)) == alone


def test_siblings_with_a_common_prompt_agree_with_a_plain_forward_and_compute_it_once():
    model, prompt = small_llama(), words(random.Random(0), 100, 100)

    async def main():
        async with embedded(model, max_running=8, prefill_tokens=32) as engine:
            calls = (engine.generate(prompt, sampling=tokens(8, seed=i), session_id=str(i)) for i in range(8))
            return await asyncio.gather(*calls), engine.stats()

    completions, stats = asyncio.run(main())
    assert max(gap(model, prompt, completion) for completion in completions) < 1e-4
    assert stats.prefill_computed == 100 + 7


def test_weights_loaded_in_flight_change_versions_from_there_on_and_the_next_turn_starts_from_nothing():
    old, new = small_llama(seed=0), small_llama(seed=1)
    prompt, channel = list(range(30)), MemoryChannel()
    channel.publish(7, new.state_dict())

    async def main():
        async with embedded(old) as engine:
            flight = asyncio.create_task(engine.generate(prompt, sampling=tokens(150, seed=1), session_id="a"))
            while engine.stats().tokens < 10:
                await asyncio.sleep(0.001)
            await engine.load(7, source=channel)
            first = await flight
            before = engine.stats()
            second_prompt = [*prompt, *first.ids, 1, 2]
            second = await engine.generate(second_prompt, sampling=tokens(10, seed=2), session_id="a")
            return first, before, second_prompt, second, engine.stats()

    first, before, second_prompt, second, after = asyncio.run(main())
    changed = first.versions.index(7)
    assert 0 < changed < 150
    assert first.versions == (0,) * changed + (7,) * (150 - changed)
    head = Completion(first.ids[:changed], first.logprobs[:changed], first.versions[:changed], "length")
    assert gap(old, prompt, head) < 1e-4
    assert set(second.versions) == {7}
    assert gap(new, second_prompt, second) < 1e-4
    assert after.prefill_reused == before.prefill_reused
    assert after.prefill_computed - before.prefill_computed == len(second_prompt)


def test_policies_speak_side_by_side_with_their_own_weights_and_versions():
    models = [small_llama(seed=seed) for seed in range(3)]
    prompt, channel = list(range(25)), MemoryChannel()
    for version in (1, 2):
        channel.publish(version, models[version].state_dict())

    async def main():
        async with embedded(models[0]) as engine:
            await engine.add_policy("reference", version=1, source=channel)
            await engine.add_policy("stale", version=1, source=channel)
            await engine.load(2, policy="stale", source=channel)
            calls = (
                engine.generate(prompt, sampling=tokens(10, seed=5), session_id="s", policy=policy)
                for policy in ("current", "reference", "stale")
            )
            return await asyncio.gather(*calls)

    completions = asyncio.run(main())
    for version, (model, completion) in enumerate(zip(models, completions, strict=True)):
        assert gap(model, prompt, completion) < 1e-4
        assert set(completion.versions) == {version}
    assert [completion.policy for completion in completions] == ["current", "reference", "stale"]


def test_a_tied_weight_may_be_published_under_one_of_its_names():
    old, new, channel = small_llama(seed=0), small_llama(seed=1), MemoryChannel()
    channel.publish(1, dict(new.named_parameters()))  # without lm_head.weight
    ids = list(range(20))

    async def main():
        async with embedded(old) as engine:
            await engine.load(1, source=channel)
            return await engine.score(ids)

    expected = full_logprobs(new, ids).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
    assert (torch.tensor(asyncio.run(main())) - expected).abs().max() < 1e-5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_same_code_serves_on_a_gpu():
    model = small_llama()
    gaps = []

    async def main():
        async with embedded(model.to("cuda"), max_running=6, max_cached=8, prefill_tokens=32) as engine:
            cpu = small_llama()

            def check(ids, completion):
                gaps.append(gap(cpu, ids, completion))

            await asyncio.gather(*(play(engine, str(i), turns=4, seed=i, check=check) for i in range(10)))

    asyncio.run(main())
    assert max(gaps) < 1e-3
