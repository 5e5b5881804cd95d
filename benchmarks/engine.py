"""Tokens per second of the embedded engine against Transformers' `generate`, on a CPU, in one interleaved run.

Sessions of six turns with a growing history. Every turn has its own number of new tokens, and both sides make exactly those: our
engine as each session goes along, `generate` turn by turn over all sessions, with left padding, to the longest answer of the turn, the
whole history given again. Both draw at temperature 1 and return the logprobs of what they drew. Prompts are random and share nothing;
each repeat has new ones, so that nothing cached from the last one helps.

    python benchmarks/engine.py --models tiny smollm2-135m --repeats 3
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import copy
import json
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from ludus.config import EngineConfig
from ludus.engines.embedded import EmbeddedEngine
from ludus.errors import ConfigError
from ludus.models.loading.load import load_model
from ludus.models.loading.tiny import make_tiny
from ludus.types import Sampling

TURNS = 6
SESSION_TOKENS = 640  # 64 of prompt, then at most 6 x 48 sampled and 5 x 32 observed


@dataclass(frozen=True)
class Session:
    """`observations[0]` is the prompt; after the observation of each turn come `answers[turn]` sampled tokens."""

    observations: list[list[int]]
    answers: list[int]


def make_sessions(num: int, *, vocab_size: int, seed: int) -> list[Session]:
    rng = random.Random(seed)

    def words(low: int, high: int) -> list[int]:
        return [rng.randrange(vocab_size) for _ in range(rng.randint(low, high))]

    return [
        Session([words(32, 64)] + [words(16, 32) for _ in range(TURNS - 1)], [rng.randint(8, 48) for _ in range(TURNS)])
        for _ in range(num)
    ]


async def ours(engine: EmbeddedEngine, sessions: list[Session], *, seed: int) -> float:
    async def play(index: int, session: Session) -> None:
        ids: list[int] = []
        for turn, (observation, answer) in enumerate(zip(session.observations, session.answers, strict=True)):
            ids += observation
            sampling = Sampling(max_tokens=answer, seed=seed + index * TURNS + turn)
            completion = await engine.generate(ids, sampling=sampling, session_id=f"{seed}-{index}")
            assert len(completion.ids) == answer == len(completion.logprobs)
            ids += completion.ids
        await engine.release(f"{seed}-{index}")

    began = time.perf_counter()
    await asyncio.gather(*(play(index, session) for index, session in enumerate(sessions)))
    return time.perf_counter() - began


@torch.inference_mode()
def theirs(model: PreTrainedModel, sessions: list[Session]) -> float:
    began = time.perf_counter()
    histories: list[list[int]] = [[] for _ in sessions]
    for turn in range(len(sessions[0].answers)):
        for history, session in zip(histories, sessions, strict=True):
            history += session.observations[turn]
        longest = max(map(len, histories))
        ids = torch.tensor([[0] * (longest - len(history)) + history for history in histories])
        mask = torch.tensor([[0] * (longest - len(history)) + [1] * len(history) for history in histories])
        output = model.generate(  # type: ignore[operator]
            ids,
            attention_mask=mask,
            max_new_tokens=max(session.answers[turn] for session in sessions),
            do_sample=True,
            top_k=0,
            output_scores=True,
            return_dict_in_generate=True,
        )
        scored = model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)  # type: ignore[operator]
        sampled = output.sequences[:, longest:].tolist()
        for history, session, row, scores in zip(histories, sessions, sampled, scored.tolist(), strict=True):
            history += row[: session.answers[turn]]
            assert len(scores) >= session.answers[turn]
    return time.perf_counter() - began


async def compare(name: str, model: PreTrainedModel, *, num_sessions: int, repeats: int, threads: int) -> None:
    config = EngineConfig(threads=threads, max_running=max(64, num_sessions))
    engine = EmbeddedEngine(copy.deepcopy(model), config=config, max_tokens=SESSION_TOKENS)
    rates: list[tuple[float, float]] = []
    for repeat in range(repeats + 1):
        sessions = make_sessions(num_sessions, vocab_size=model.config.vocab_size, seed=repeat)
        if repeat == 0:  # a warm-up of both, not counted
            sessions = [Session(session.observations[:1], [2]) for session in sessions]
        tokens = sum(sum(session.answers) for session in sessions)
        rate = tokens / await ours(engine, sessions, seed=repeat * 10**6), tokens / theirs(model, sessions)
        rates += [rate] if repeat else []
    await engine.close()
    case = {
        "case": f"engine/{name}/{num_sessions}",
        "ratio": round(statistics.median(mine / peer for mine, peer in rates), 2),
        "ludus_tokens_per_s": round(statistics.median(mine for mine, _ in rates), 1),
        "generate_tokens_per_s": round(statistics.median(peer for _, peer in rates), 1),
        "sessions": num_sessions,
        "repeats": repeats,
        "threads": threads,
    }
    print(json.dumps(case), flush=True)


def load(name: str) -> PreTrainedModel:
    if name != "tiny":
        model = load_model(name, device="cpu")
    else:
        with tempfile.TemporaryDirectory() as folder:
            corpus = Path(__file__).read_text().splitlines()
            model = load_model(make_tiny(folder, corpus=corpus, seed=0), device="cpu")
    model.generation_config.eos_token_id = None  # both sides stop by length alone
    model.generation_config.pad_token_id = 0
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", help="tiny smollm2-135m; with --device cuda: 0.5b 7b")
    parser.add_argument("--sessions", nargs="+", type=int, help="1 8 32; with --device cuda: 64 256 512, of 7b 64 256")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cuda: see engine_cuda.py")
    options = parser.parse_args()
    if options.device == "cuda":
        import engine_cuda

        engine_cuda.run(shapes=options.models, counts=options.sessions, repeats=options.repeats)
        return
    torch.set_num_threads(options.threads)
    for name in options.models or ["tiny", "smollm2-135m"]:
        try:
            model = load(name)
        except ConfigError as error:
            print(json.dumps({"case": f"engine/{name}", "skipped": str(error)}), flush=True)
            continue
        for num_sessions in options.sessions or [1, 8, 32]:
            coroutine = compare(
                name, model, num_sessions=num_sessions, repeats=options.repeats, threads=options.threads
            )
            asyncio.run(coroutine)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
