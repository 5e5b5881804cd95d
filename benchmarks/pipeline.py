"""Asynchronous against synchronous training, with environments whose latency has a heavy tail.

The same work on both sides: the same model, tasks, group size and number of optimiser steps, and so the same number of trajectories
trained; only pipeline.max_staleness differs. A call into the environment is Pareto distributed, so that now and then one takes seconds.
The sides take turns; the ratio is of trajectories trained per second, after the first steps, in which kernels are compiled.

    python benchmarks/pipeline.py --repeats 3 --steps 12                 # the tiny model and a fake world, on one thread
    python benchmarks/pipeline.py --device cuda --repeats 1 --steps 14   # a 0.5B shape, warm started, in textcraft
    python benchmarks/pipeline.py --device cuda --model smollm2-135m     # where its weights are at hand

Told beside it: how busy the GPU was (nvidia-smi), engine and trainer by their own clocks, how long a load keeps generation waiting, and
what held up the asynchronous side.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ludus.config import RunConfig, parse_config
from ludus.environments import registry
from ludus.launch.clone import sft
from ludus.launch.train import train
from ludus.reports.profile import make_profile, setting_of
from ludus.reports.timeline import spans
from ludus.store.run_folder import RunFolder
from ludus.types import Action, Observation, Task

SIZES: dict[str, dict[str, Any]] = {
    "cpu": {
        "model": "tiny", "world": "fake", "latency_s": 0.03, "tail": 1.4, "groups": 4, "group_size": 8, "staleness": 2, "skip": 0,
        "processes": 0,
    },
    "cuda": {
        "model": "0.5b", "world": "textcraft", "latency_s": 0.1, "tail": 1.5, "groups": 32, "group_size": 8, "staleness": 3, "skip": 4,
        "processes": 1,
    },
}  # fmt: skip
"""What a device is given to do unless the command line says otherwise."""
TURNS, DEPTHS = 10, [2, 3]
THOUGHT = "I look at what I have and at what the goal needs, and then I get or craft what comes next."
"""Said before every action: agents think aloud, and a turn without it has 10 tokens instead of 50."""
WARM_STEPS = {"cpu": 30, "cuda": 80}


class SlowTextcraft:
    """Textcraft whose every answer takes its time, and whose solver thinks aloud."""

    description = "Textcraft, slowly."

    def __init__(self, *, name: str = "slow_textcraft", latency_s: float = 0.0, tail: float = 1.5) -> None:
        self.name, self.max_turns = name, TURNS
        self.options: dict[str, Any] = {"latency_s": latency_s, "tail": tail}
        self._inner = registry.make("textcraft", options={"depths": DEPTHS, "max_turns": TURNS})

    def tasks(self, split: str) -> list[Task]:
        return [replace(task, environment=self.name) for task in self._inner.tasks(split)]

    def open(self, task: Task, *, seed: int) -> SlowSession:
        session = self._inner.open(replace(task, environment=self._inner.name), seed=seed)
        return SlowSession(session, rng=random.Random(seed), **self.options)


class SlowSession:
    def __init__(self, session: Any, *, rng: random.Random, latency_s: float, tail: float) -> None:
        self._session, self._rng, self._latency_s, self._tail = session, rng, latency_s, tail

    def solve(self) -> Action:
        return _aloud(self._session.solve())

    def random_action(self, rng: random.Random) -> Action:
        return _aloud(self._session.random_action(rng))

    async def start(self) -> Observation:
        await self._wait()
        observation: Observation = self._session.start()
        return observation

    async def act(self, action: Action) -> Observation:
        await self._wait()
        observation: Observation = self._session.act(replace(action, content=action.content.rpartition("\n")[2]))
        return observation

    def close(self) -> None:
        self._session.close()

    async def _wait(self) -> None:
        """`latency_s` in the median."""
        await asyncio.sleep(self._latency_s * self._rng.paretovariate(self._tail) / 2 ** (1 / self._tail))


def _aloud(action: Action) -> Action:
    return replace(action, content=f"{THOUGHT}\n{action.content}")


# ------------------------------------------------------------------------------------------------ runs


def run_config(
    given: argparse.Namespace, folder: Path, *, name: str, model: str, latency_s: float, bound: int, seed: int
) -> RunConfig:
    if given.world == "fake":
        options = {"latency_s": latency_s, "tail": given.tail, "blocking": False, "turns": 4}
        environments = {"fake": {"source": "ludus.environments.fake:FakeEnvironment", "options": options}}
        rollout = {"max_turn_tokens": 4, "max_tokens": 256, "max_invalid": 8}
    else:
        options = {"latency_s": latency_s, "tail": given.tail}
        environments = {"slow_textcraft": {"source": f"{__file__}:SlowTextcraft", "options": options}}
        rollout = {"max_turn_tokens": 96, "max_tokens": 2048, "max_invalid": TURNS, "max_turns": TURNS}
    sessions = (bound + 1) * given.groups * given.group_size
    on_gpu = given.device == "cuda"
    return parse_config(
        {
            "name": name,
            "seed": seed,
            "model": {"name": model, "device": given.device},
            "environments": environments,
            "rollout": {"group_size": given.group_size, **rollout},
            "engine": {"max_running": min(512, sessions), "max_cached": sessions} if on_gpu else {},
            "pipeline": {
                "steps": given.steps,
                "groups_per_step": given.groups,
                "max_staleness": bound,
                "session_processes": given.processes,
            },
            "algorithm": {"filter": "none"},  # a poor model seldom scores: every group is trained all the same
            "trainer": {"lr": 1e-5},
            "sft": {
                "num_trajectories": 128,
                "mistakes": 0.3,
                "steps": WARM_STEPS[given.device],
                "batch_tokens": 16384 if on_gpu else 4096,
                "lr": 3e-4 if on_gpu else 2e-3,
            },
            "store": {"folder": str(folder), "trajectories": False, "tensorboard": False, "checkpoint_every": 0},
        }
    )


def make_start(given: argparse.Namespace, folder: Path) -> str:
    """The model both sides start with. In the fake world an untrained one will do; elsewhere it must know how to end a turn."""
    if given.world == "fake":
        return str(given.model)
    model = given.model if given.model != "0.5b" else make_shape(folder / "0.5b", device=given.device)
    config = run_config(given, folder, name="warm", model=model, latency_s=0.0, bound=0, seed=0)
    return str(asyncio.run(sft(config))["export"])


def make_shape(folder: Path, *, device: str) -> str:
    """Qwen2.5-0.5B's shape with random weights, and a tokenizer made from textcraft, its vocabulary filled up with words nobody says."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    from engine_cuda import SHAPES, VOCABULARY
    from ludus.controller.client.local import LocalClient
    from ludus.launch.corpus import corpus as said_in
    from ludus.models.loading.save import save_model
    from ludus.models.loading.tiny import make_tiny_tokenizer

    async def corpus() -> list[str]:
        client = LocalClient([registry.make("textcraft", options={"depths": DEPTHS, "max_turns": TURNS})])
        try:
            return [text async for text in said_in(client, client.environments())]
        finally:
            await client.close()

    known = make_tiny_tokenizer(asyncio.run(corpus()), vocab_size=2048, context=4096)
    backend = json.loads(known.backend_tokenizer.to_str())
    words = backend["model"]["vocab"]
    words |= {f"unsaid-{number}": number for number in range(len(words), VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(backend)),
        eos_token=known.eos_token,
        pad_token=known.pad_token,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = known.chat_template
    torch.manual_seed(0)
    shape = Qwen2Config(
        **SHAPES["0.5b"],
        vocab_size=VOCABULARY,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.device(device):
        model = Qwen2ForCausalLM(shape).to(torch.bfloat16)
    return str(save_model(folder, model=model, tokenizer=tokenizer))


# ------------------------------------------------------------------------------------------------ measuring


def measured(config: RunConfig, *, skip: int) -> dict[str, Any]:
    """A whole run, counted from the end of step `skip` on."""
    trained = dropped = sampled = 0.0
    turns: list[float] = []
    began = ended = began_at = ended_at = 0.0

    def listen(kind: str, fields: Any) -> None:
        nonlocal trained, dropped, sampled, began, ended, began_at, ended_at
        first = "metrics" if skip else "started"
        if kind == first and fields.get("step", 0) == skip:
            began, began_at = time.perf_counter(), time.time()
        elif kind == "metrics" and fields["step"] > skip:
            trained += fields["trajectories/trained"]
            sampled += fields["optimizer/sampled_tokens"]
            turns.extend(value for name, value in fields.items() if name.startswith("train/turns/"))
            dropped += sum(value for name, value in fields.items() if name.startswith("groups/dropped"))
            ended, ended_at = time.perf_counter(), time.time()

    with gpu_use() as use:
        asyncio.run(train(config, listeners=[listen]))
    gc.collect()  # the next run needs the memory that this one had
    folder = RunFolder.open(config.folder)
    # what comes after the last step, such as the report, is no part of it
    lines = [
        line for line in folder.timeline() if began_at < line["time"] + line["seconds"] and line["time"] < ended_at
    ]
    started = next(event for event in folder.events() if event["kind"] == "started")
    profile = make_profile(
        spans(lines),
        metrics=[line for line in folder.metrics() if line["step"] > skip],
        setting=setting_of(config, on_gpu=started["device"] != "cpu"),
        device=started["device"],
        parameters=started["parameters"],
    )
    whole = profile.whole
    busy = [share for at, share in use if began_at <= at <= ended_at]
    return {
        "per_s": trained / (ended - began),
        "trained": trained,
        "turns": round(statistics.mean(turns), 2),
        "tokens_per_turn": round(sampled / trained / statistics.mean(turns), 1),
        "dropped_groups": dropped,
        "gpu_busy": round(statistics.mean(busy), 3) if busy else None,
        "engine_busy": round(whole.busy, 3),
        "trainer_busy": round(1 - whole.trainer["idle"], 3),
        "pause_ms": round(profile.pause_ms, 2) if profile.pause_ms is not None else None,
        "tokens_per_s": round(whole.tokens_per_s),
        "trained_tokens_per_s": round(profile.trained_per_s or 0),
        "mfu": round(profile.run_use, 4) if profile.run_use else None,
        "hit_rate": round(whole.hit_rate, 3) if whole.hit_rate is not None else None,
        "verdict": profile.verdict.text,
    }


@contextmanager
def gpu_use() -> Iterator[list[tuple[float, float]]]:
    """(when, share of the time in which a kernel ran) five times a second; empty where there is no nvidia-smi."""
    found: list[tuple[float, float]] = []
    query = ["nvidia-smi", "-i", "0", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200"]
    try:
        process = subprocess.Popen(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except FileNotFoundError:
        yield found
        return

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip().isdigit():
                found.append((time.time(), int(line) / 100))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield found
    finally:
        process.terminate()
        process.wait()
        reader.join()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--model", help="tiny, 0.5b (random weights), or whatever model.name takes")
    parser.add_argument("--world", choices=("fake", "textcraft"))
    parser.add_argument("--latency-s", type=float, help="median of a call into the environment")
    parser.add_argument("--tail", type=float, help="its Pareto exponent, heavier when smaller")
    parser.add_argument("--groups", type=int, help="per optimiser step")
    parser.add_argument("--group-size", type=int)
    parser.add_argument("--staleness", type=int, help="bound of the asynchronous side")
    parser.add_argument("--processes", type=int, help="that play the sessions, beside the run's own; 0: it does")
    parser.add_argument("--skip", type=int, help="first steps that are not counted")
    given = parser.parse_args()
    for name, value in SIZES[given.device].items():
        if getattr(given, name) is None:
            setattr(given, name, value)
    if given.skip >= given.steps:
        parser.error(f"--skip {given.skip} leaves nothing of --steps {given.steps}")
    return given


def main() -> None:
    given = parse()
    if given.device == "cpu":
        torch.set_num_threads(1)
    sides: dict[str, list[dict[str, Any]]] = {"asynchronous": [], "synchronous": []}
    with tempfile.TemporaryDirectory() as folder:
        model = make_start(given, Path(folder))
        for repeat in range(given.repeats):
            for side, bound in (("asynchronous", given.staleness), ("synchronous", 0)):
                config = run_config(
                    given, Path(folder), name=f"{side}-{repeat}", model=model, latency_s=given.latency_s, bound=bound, seed=repeat
                )  # fmt: skip
                sides[side].append(measured(config, skip=given.skip))
                print(json.dumps({"side": side, "repeat": repeat, **sides[side][-1]}), flush=True)
    ratios = [a["per_s"] / s["per_s"] for a, s in zip(sides["asynchronous"], sides["synchronous"], strict=True)]
    middle = sorted(sides["asynchronous"], key=lambda each: each["per_s"])[given.repeats // 2]
    line = {
        "case": "pipeline/heavy_tail" if given.world == "fake" else f"pipeline/{given.world}/{given.device}/{given.model}",
        "ratio": round(statistics.median(ratios), 2),
        "ratios": [round(ratio, 2) for ratio in ratios],
        "asynchronous_per_s": round(middle["per_s"], 2),
        "synchronous_per_s": round(statistics.median(r["per_s"] for r in sides["synchronous"]), 2),
        "trained": middle["trained"],
        "turns": middle["turns"],
        "tokens_per_turn": middle["tokens_per_turn"],
        "asynchronous_dropped_groups": [r["dropped_groups"] for r in sides["asynchronous"]],
        **{name: middle[name] for name in ("gpu_busy", "engine_busy", "trainer_busy", "pause_ms", "tokens_per_s", "mfu", "hit_rate")},
        **{name: getattr(given, name) for name in ("latency_s", "tail", "groups", "group_size", "staleness", "steps")},
        "threads": torch.get_num_threads(),
    }  # fmt: skip
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
