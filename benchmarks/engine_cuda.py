"""Tokens per second of the embedded engine on one GPU, through its real interface, beside Transformers' `generate` and, where it is
installed, vLLM with the same prompts.

Models have the shapes of Qwen2.5 and random weights, in bfloat16; every request samples at temperature 1 and returns logprobs.

    python benchmarks/engine.py --device cuda
    python benchmarks/engine.py --device cuda --models 7b --sessions 64
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
import statistics
import tempfile
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from ludus.config import EngineConfig, TrainerConfig
from ludus.engines.embedded import EmbeddedEngine
from ludus.trainer.local import LocalTrainer
from ludus.types import Sampling

PROMPT, NEW = 256, 128
TURNS, OBSERVED, SAID = 6, 64, 48
VOCABULARY = 151_936
SHAPES: dict[str, dict[str, Any]] = {
    "0.5b": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2},
    "7b": {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4},
}  # fmt: skip
COUNTS = {"0.5b": (64, 256, 512), "7b": (64, 256)}


def make_model(shape: str) -> PreTrainedModel:
    config = Qwen2Config(
        **SHAPES[shape],
        vocab_size=VOCABULARY,
        max_position_embeddings=4096,
        tie_word_embeddings=shape == "0.5b",
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen2ForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    return model


def make_engine(model: PreTrainedModel, *, sessions: int, max_tokens: int) -> EmbeddedEngine:
    config = EngineConfig(max_running=sessions, max_cached=sessions, max_waiting=8192)
    return EmbeddedEngine(copy.deepcopy(model), config=config, max_tokens=max_tokens)


def words(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(count)]


async def prompts(shape: str, model: PreTrainedModel, *, sessions: int, repeats: int) -> None:
    """Many prompts at once, each answered with as many tokens."""
    engine = make_engine(model, sessions=sessions, max_tokens=PROMPT + NEW)
    seconds = []
    for repeat in range(repeats + 1):
        asked = [words(random.Random(f"{repeat}-{i}"), PROMPT) for i in range(sessions)]
        began = time.perf_counter()
        await together(generate(engine, ids, seed=i, session=f"{repeat}-{i}") for i, ids in enumerate(asked))
        seconds.append(time.perf_counter() - began)
        for i in range(sessions):
            await engine.release(f"{repeat}-{i}")
    # in the engine's own thread, which would capture graphs beside it: those share their memory, and run one at a time
    steps = await engine._between_steps(lambda: decode_ms(engine))
    await engine.close()
    first, *counted = seconds
    case = {
        "case": f"engine/cuda/{shape}/{sessions}",
        "ludus_tokens_per_s": round(sessions * NEW / statistics.median(counted)),
        "first_s": round(first, 2),
        "decode_ms": steps,
        "bandwidth_bound_ms": round(bound_ms(model, tokens=sessions * (PROMPT + NEW // 2)), 2),
        "sessions": sessions,
        "repeats": repeats,
    }
    if shape == "0.5b" and sessions <= 256:
        peer = sessions * NEW / theirs(model, sessions=sessions)
        case |= {"generate_tokens_per_s": round(peer), "ratio": round(case["ludus_tokens_per_s"] / peer, 2)}  # type: ignore[operator]
    if (rate := vllm_tokens_per_s(model, sessions=sessions)) is not None:
        case |= {"vllm_tokens_per_s": round(rate), "vllm_ratio": round(case["ludus_tokens_per_s"] / rate, 2)}  # type: ignore[operator]
    print(json.dumps(case), flush=True)


async def conversations(shape: str, model: PreTrainedModel, *, sessions: int, repeats: int) -> None:
    """Six turns each; the cache should hold everything that was said before."""
    engine = make_engine(model, sessions=sessions, max_tokens=TURNS * (OBSERVED + SAID))
    rates, hits = [], []

    async def converse(name: str) -> None:
        rng, ids = random.Random(name), list[int]()
        for turn in range(TURNS):
            ids += words(rng, OBSERVED)
            ids += await generate(engine, ids, seed=turn, session=name, count=SAID)
        await engine.release(name)

    for repeat in range(repeats + 1):
        before, began = engine.stats(), time.perf_counter()
        await together(converse(f"{repeat}-{i}") for i in range(sessions))
        rates.append(sessions * TURNS * SAID / (time.perf_counter() - began))
        after = engine.stats()
        seen_before = sessions * sum(turn * (OBSERVED + SAID) for turn in range(TURNS))
        hits.append((after.prefill_reused - before.prefill_reused) / seen_before)
    await engine.close()
    case = {
        "case": f"engine/cuda/{shape}/conversations/{sessions}",
        "ludus_tokens_per_s": round(statistics.median(rates[1:])),
        "hit_rate_of_what_was_said_before": round(statistics.median(hits[1:]), 3),
        "sessions": sessions,
        "turns": TURNS,
        "repeats": repeats,
    }
    print(json.dumps(case), flush=True)


async def agreement(shape: str, model: PreTrainedModel) -> None:
    """Mean distance between the logprobs of the engine's draws and the trainer's, in bfloat16."""
    engine = make_engine(model, sessions=16, max_tokens=PROMPT + NEW)
    trainer = LocalTrainer(
        copy.deepcopy(model), algorithm_loss=lambda tokens: (tokens.logprobs, {}), config=TrainerConfig()
    )
    gaps: list[float] = []

    async def one(i: int) -> None:
        ids = words(random.Random(i), PROMPT)
        sampling = Sampling(max_tokens=NEW, seed=i)
        completion = await engine.generate(ids, sampling=sampling, session_id=str(i))
        scored = trainer.logprobs([*ids, *completion.ids])[len(ids) - 1 :]
        gaps.extend(abs(a - b) for a, b in zip(scored, completion.logprobs, strict=True))

    await together(one(i) for i in range(16))
    await engine.close()
    case = {
        "case": f"engine/cuda/{shape}/agreement",
        "mean_gap": round(statistics.mean(gaps), 4),
        "max_gap": round(max(gaps), 3),
    }
    print(json.dumps(case), flush=True)


async def generate(
    engine: EmbeddedEngine, ids: list[int], *, seed: int, session: str, count: int = NEW
) -> tuple[int, ...]:
    completion = await engine.generate(ids, sampling=Sampling(max_tokens=count, seed=seed), session_id=session)
    assert len(completion.ids) == count == len(completion.logprobs)
    return completion.ids


async def together(work: Any) -> None:
    coroutines: list[Coroutine[Any, Any, Any]] = list(work)
    await asyncio.gather(*coroutines)


@torch.inference_mode()
def decode_ms(engine: EmbeddedEngine) -> float:
    """One decode step of the largest graph, alone."""
    _, decoder = next(iter(engine._policies._passes.values()))  # type: ignore[attr-defined]
    graph = decoder._graphs[max(decoder._graphs)]
    times = []
    for _ in range(20):
        decoder._step.zero_()
        torch.cuda.synchronize()
        began = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1e3)
    return round(statistics.median(times), 2)


def bound_ms(model: PreTrainedModel, *, tokens: int) -> float:
    """Reading every weight and every cached key and value once, at the bandwidth that a large copy reaches here."""
    config: Any = model.config
    head_dim = config.hidden_size // config.num_attention_heads
    cached = tokens * config.num_hidden_layers * 2 * config.num_key_value_heads * head_dim * 2
    weights = sum(parameter.numel() for parameter in model.parameters()) * 2
    return (cached + weights) / bandwidth() * 1e3


def bandwidth() -> float:
    source, target = (torch.empty(2**30, dtype=torch.uint8, device="cuda") for _ in range(2))
    target.copy_(source)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(10):
        target.copy_(source)
    torch.cuda.synchronize()
    return 10 * 2 * 2**30 / (time.perf_counter() - began)


@torch.inference_mode()
def theirs(model: PreTrainedModel, *, sessions: int) -> float:
    ids = torch.tensor([words(random.Random(i), PROMPT) for i in range(sessions)], device="cuda")
    model.set_attn_implementation("sdpa")
    times = []
    for _ in range(2):  # the first is a warm-up
        torch.cuda.synchronize()
        began = time.perf_counter()
        model.generate(ids, max_new_tokens=NEW, do_sample=True, top_k=0, pad_token_id=0)  # type: ignore[operator]
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return times[-1]


def vllm_tokens_per_s(model: PreTrainedModel, *, sessions: int) -> float | None:
    """The second of two rounds, with logprobs; None where vLLM is not installed."""
    try:
        from vllm import LLM, SamplingParams
    except ImportError:
        return None
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        llm = LLM(
            model=folder,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=PROMPT + NEW,
            max_num_seqs=sessions,
            gpu_memory_utilization=0.5,
        )
        settings = SamplingParams(temperature=1.0, max_tokens=NEW, ignore_eos=True, logprobs=0, detokenize=False)
        for round_ in range(2):
            asked = [{"prompt_token_ids": words(random.Random(f"{round_}-{i}"), PROMPT)} for i in range(sessions)]
            began = time.perf_counter()
            answers = llm.generate(asked, settings, use_tqdm=False)
            seconds = time.perf_counter() - began
    return sum(len(answer.outputs[0].token_ids) for answer in answers) / seconds


def run(*, shapes: Sequence[str] | None, counts: Sequence[int] | None, repeats: int) -> None:
    """All of `COUNTS`, or those that are named."""
    for shape in shapes or COUNTS:
        model = make_model(shape)
        for sessions in counts or COUNTS[shape]:
            asyncio.run(prompts(shape, model, sessions=sessions, repeats=repeats))
        asyncio.run(conversations(shape, model, sessions=128, repeats=repeats))
        if shape == "0.5b":
            asyncio.run(agreement(shape, model))
        del model
        torch.cuda.empty_cache()
