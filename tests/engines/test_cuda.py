"""The engine on a GPU. Its kernels, and with them the whole engine, against plain forward passes."""

from __future__ import annotations

import asyncio
import copy
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import (
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from ludus.config import EngineConfig
from ludus.engines.embedded import EmbeddedEngine
from ludus.engines.noise import noise_origin, uniform
from ludus.engines.sample import draw
from ludus.types import Sampling
from ludus.weights.memory import MemoryChannel
from tests.engines.examples import VOCAB, embedded, small_llama
from tests.trainer.examples import make_batch, make_model, make_trainer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
SIZES = {
    "vocab_size": 997,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.15,
}
FAMILIES = {
    "llama": lambda: small_llama(**SIZES),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=32)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
}


def make(family: str, *, dtype: torch.dtype = torch.float32):
    torch.manual_seed(0)
    return FAMILIES[family]().eval().to("cuda", dtype)


@torch.inference_mode()
def logprobs_of(model, ids):
    return model(torch.tensor([ids], device="cuda")).logits[0].float().log_softmax(-1)


async def converse(engine, reference, *, index: int, turns: int, check) -> None:
    rng = random.Random(index)
    ids = [rng.randrange(997) for _ in range(rng.randint(3, 80))]
    for turn in range(turns):
        sampling = Sampling(
            max_tokens=rng.randint(1, 40), temperature=0.0 if index % 2 else 1.0, seed=index * 100 + turn
        )
        completion = await engine.generate(ids, sampling=sampling, session_id=str(index))
        said = list(completion.ids)
        check(logprobs_of(reference, ids + said)[len(ids) - 1 : -1], completion, greedy=bool(index % 2))
        ids += said + [rng.randrange(997) for _ in range(rng.randint(1, 40))]
    await engine.release(str(index))


def play(model, *, conversations: int, check, **config) -> None:
    async def main() -> None:
        reference = copy.deepcopy(model)
        settings = EngineConfig(**{"max_running": 32, "max_cached": 48, **config})
        engine = EmbeddedEngine(model, config=settings, max_tokens=512)
        try:
            work = (converse(engine, reference, index=i, turns=3, check=check) for i in range(conversations))
            await asyncio.gather(*work)
        finally:
            await engine.close()

    asyncio.run(main())


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_answers_equal_transformers_and_logprobs_its_forward_pass_in_float32(family):
    wrong, gaps, num = [], [], 0

    def check(expected, completion, *, greedy):
        nonlocal num
        num += len(completion.ids)
        for row, token, logprob in zip(expected, completion.ids, completion.logprobs, strict=True):
            gaps.append(abs(row[token].item() - logprob))
            if greedy and row.max().item() - row[token].item() > 1e-5:
                wrong.append(token)

    play(make(family), conversations=50, check=check, prefill_tokens=96)
    assert num > 1000
    assert not wrong
    assert max(gaps) < 1e-4


def test_in_bfloat16_the_mean_gap_is_small():
    """Of a model with weights of a usual size; the sharper its distributions, the more a rounding shows."""
    gaps = []

    def check(expected, completion, *, greedy):
        gaps.extend(
            abs(row[t].item() - p) for row, t, p in zip(expected, completion.ids, completion.logprobs, strict=True)
        )

    model = Qwen2ForCausalLM(Qwen2Config(**SIZES | {"initializer_range": 0.03})).eval().to("cuda", torch.bfloat16)
    play(model, conversations=30, check=check)
    assert sum(gaps) / len(gaps) < 0.02


def furthest(model, ids, completion) -> float:
    """The largest gap between a completion's logprobs and those of a plain forward pass."""
    rows = logprobs_of(model, [*ids, *completion.ids])[len(ids) - 1 : -1]
    return max(abs(row[t].item() - p) for row, t, p in zip(rows, completion.ids, completion.logprobs, strict=True))


def test_siblings_read_the_same_pages_and_have_their_own_noise():
    model, ids = make("llama"), list(range(1, 200))

    async def main():
        async with embedded(model, max_tokens=512, max_running=16, max_cached=16) as engine:
            calls = (
                engine.generate(ids, sampling=Sampling(max_tokens=12, seed=i), session_id=str(i)) for i in range(8)
            )
            completions = await asyncio.gather(*calls)
            return completions, engine.stats()

    completions, stats = asyncio.run(main())
    assert stats.prefill_reused >= 7 * 198
    assert len({completion.ids for completion in completions}) > 1
    assert max(furthest(model, ids, completion) for completion in completions) < 1e-4


def test_answers_stay_right_while_a_trainer_works_on_the_same_device():
    """On a stream of its own, with graphs that are captured meanwhile."""
    gaps, stop = [], threading.Event()
    trainer = make_trainer(make_model(hidden_size=128).to("cuda"), compile=False)

    def check(expected, completion, *, greedy):
        rows = zip(expected, completion.ids, completion.logprobs, strict=True)
        gaps.extend(abs(row[token].item() - logprob) for row, token, logprob in rows)

    def train() -> int:
        while not stop.is_set():
            trainer.step(make_batch(trainer.steps % 3))
        return trainer.steps

    with ThreadPoolExecutor(1) as pool:
        trainer.step(make_batch())  # compiled
        training = pool.submit(train)
        try:
            play(make("qwen2"), conversations=30, check=check, prefill_tokens=96)
        finally:
            stop.set()
        assert training.result() > 1
    assert max(gaps) < 1e-4


def test_a_version_that_is_loaded_while_the_next_step_runs_is_whole():
    channel, ids = MemoryChannel(), list(range(3, 40))
    model = make_model(hidden_size=128)
    trainer = make_trainer(copy.deepcopy(model).to("cuda"), channel=channel, compile=False)

    def publish():
        trainer.step(make_batch(trainer.steps))
        return trainer.publish(), trainer.logprobs(ids)

    async def main():
        loop, gaps = asyncio.get_running_loop(), []
        with ThreadPoolExecutor(1) as pool:
            async with embedded(model.to("cuda"), max_tokens=256, max_running=4) as engine:
                for number in range(5):
                    version, expected = await loop.run_in_executor(pool, publish)
                    speaking = asyncio.create_task(
                        engine.generate(ids, sampling=Sampling(max_tokens=40, seed=number), session_id=str(number))
                    )
                    going_on = loop.run_in_executor(pool, trainer.step, make_batch(number, lengths=[400] * 20))
                    await engine.load(version, source=channel)
                    got = await engine.score(ids)
                    gaps.append(max(abs(a - b) for a, b in zip(expected, got, strict=True)))
                    await asyncio.gather(going_on, speaking)
        return gaps

    assert max(asyncio.run(main())) < 1e-3


def test_the_same_seed_gives_the_same_tokens_whoever_else_is_in_the_batch():
    async def said(engine, others: int):
        ids = list(range(1, 60))
        crowd = [
            engine.generate([7 + i] * 20, sampling=Sampling(max_tokens=30, seed=i), session_id=f"{others}-{i}")
            for i in range(others)
        ]
        mine = engine.generate(ids, sampling=Sampling(max_tokens=20, seed=5), session_id=f"me-{others}")
        return (await asyncio.gather(mine, *crowd))[0].ids

    async def main():
        async with embedded(make("llama"), max_tokens=512, max_running=32, max_cached=32) as engine:
            return await said(engine, 0), await said(engine, 20)

    alone, crowded = asyncio.run(main())
    assert alone == crowded


def test_new_weights_reach_the_inference_layers_and_the_captured_graphs():
    model = make("qwen2")
    other = {name: tensor * 1.3 for name, tensor in model.state_dict().items()}
    channel = MemoryChannel()
    channel.publish(1, {name: tensor.cpu() for name, tensor in other.items()})

    async def main():
        async with embedded(model, max_tokens=256, max_running=4, max_cached=4) as engine:
            sampling = Sampling(max_tokens=20, temperature=0.0)
            before = await engine.generate(list(range(1, 30)), sampling=sampling, session_id="a")
            await engine.load(1, source=channel)
            after = await engine.generate(list(range(1, 30)), sampling=sampling, session_id="b")
            return before, after

    before, after = asyncio.run(main())
    changed = copy.deepcopy(model)
    changed.load_state_dict(other)
    ids = [*range(1, 30), *after.ids]
    rows = logprobs_of(changed, ids)[28:-1]
    assert max(abs(row[t].item() - p) for row, t, p in zip(rows, after.ids, after.logprobs, strict=True)) < 1e-3
    assert before.versions[0] == 0
    assert set(after.versions) == {1}


@pytest.mark.parametrize("vocabulary", [VOCAB, 5000, 151_936])
def test_the_kernel_draws_what_the_cpu_draws(vocabulary):
    from ludus.models.kernels import inference as kernels

    generator = torch.Generator("cuda").manual_seed(0)
    logits = torch.randn(256, vocabulary, device="cuda", generator=generator) * 3
    temperatures = [0.0, 1.0, 0.7, 2.0] * 64
    starts = [noise_origin(seed) for seed in range(256)]
    origins = [start - 2**64 if start >= 2**63 else start for start in starts]
    tokens, logprobs = kernels.draw(
        logits,
        temperatures=torch.tensor(temperatures, device="cuda"),
        origins=torch.tensor(origins, device="cuda"),
        positions=torch.arange(256, device="cuda"),
        constants=kernels.noise_constants(torch.device("cuda")),
    )
    uniforms = [uniform(start, position + 1) for position, start in enumerate(starts)]
    expected = draw(logits.cpu(), temperatures=temperatures, uniforms=uniforms)
    differing = sum(int(token) != want for token, (want, _) in zip(tokens, expected, strict=True))
    assert differing <= 1, "only a number that falls on a boundary may be rounded to the other side"
    same = [(lp, want) for t, lp, (w, want) in zip(tokens.tolist(), logprobs.tolist(), expected, strict=True) if t == w]
    assert max(abs(a - b) for a, b in same) < 1e-4


def test_a_model_of_an_unknown_kind_is_served_as_transformers_has_it(monkeypatch):
    from ludus.models.layers import inference as layers

    monkeypatch.setattr(layers, "recognised", lambda layer: False)
    model = make("llama")
    assert isinstance(model, LlamaForCausalLM)
    gaps = []

    def check(expected, completion, *, greedy):
        gaps.extend(
            abs(row[t].item() - p) for row, t, p in zip(expected, completion.ids, completion.logprobs, strict=True)
        )

    play(model, conversations=6, check=check)
    assert max(gaps) < 1e-4


def test_with_few_pages_the_youngest_give_way_and_their_logprobs_are_those_of_a_forward_pass():
    from ludus.engines.cuda import memory_of
    from ludus.models.attention.cached import Shape
    from ludus.models.attention.paged import page_bytes

    model = make("qwen2")
    share = 24 * page_bytes(Shape.of(model), dtype=torch.float32) / memory_of(model.device)
    prompts = [[7 + i] * 60 for i in range(8)]

    async def main():
        async with embedded(model, max_tokens=512, max_running=8, max_cached=8, memory=share) as engine:
            calls = (
                engine.generate(ids, sampling=Sampling(max_tokens=200, seed=i), session_id=str(i))
                for i, ids in enumerate(prompts)
            )
            completions = await asyncio.gather(*calls)
            return completions, engine.stats(), engine._policies.num_pages

    completions, stats, num_pages = asyncio.run(main())
    assert num_pages == 24 - 1 - 9
    assert stats.preempted > 0
    for ids, completion in zip(prompts, completions, strict=True):
        rows = logprobs_of(model, [*ids, *completion.ids])[len(ids) - 1 : -1]
        gaps = [abs(row[t].item() - p) for row, t, p in zip(rows, completion.ids, completion.logprobs, strict=True)]
        assert max(gaps) < 1e-4


def test_a_pass_that_runs_out_of_memory_once_goes_on_with_half_the_cache_and_new_graphs(monkeypatch):
    from ludus.engines.cuda import CudaPolicies

    model, real, calls = make("llama"), CudaPolicies.launch, []

    def launch(self, planned, **options):
        calls.append(planned)
        if len(calls) == 3:
            raise torch.OutOfMemoryError("as ordered")
        return real(self, planned, **options)

    monkeypatch.setattr(CudaPolicies, "launch", launch)
    ids = list(range(1, 90))

    async def main():
        async with embedded(model, max_tokens=256, max_running=4, max_cached=4) as engine:
            return await engine.generate(ids, sampling=Sampling(max_tokens=60, seed=1), session_id="a")

    with pytest.warns(UserWarning, match="half the cache"):
        completion = asyncio.run(main())
    rows = logprobs_of(model, [*ids, *completion.ids])[len(ids) - 1 : -1]
    gaps = [abs(row[t].item() - p) for row, t, p in zip(rows, completion.ids, completion.logprobs, strict=True)]
    assert max(gaps) < 1e-4
