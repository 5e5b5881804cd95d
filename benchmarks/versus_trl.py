"""Trajectories trained per second of Ludus against TRL's GRPOTrainer, on a CPU, in one interleaved run.

Both sides train the same warm-started tiny model on the same number-guessing game with a tool, token for token the same first prompts,
with the same groups, temperature, limits, learning rate and number of optimiser steps. Each side lives in a process of its own on the
same cores with the same number of torch threads, and they take turns; what is timed is the training alone, from before the first
session to the end of the last optimiser step. Every repeat starts again from the same weights.

    python benchmarks/versus_trl.py --repeats 3 --steps 16 --threads 2
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ludus.config import RunConfig, parse_config
from ludus.launch.clone import sequences_of, solver_trajectories
from ludus.launch.context import make_model_context
from ludus.launch.train import train
from ludus.models.loading.load import load_model, load_tokenizer
from ludus.models.loading.save import save_model
from ludus.trainer.sft import clone, cloning_trainer
from ludus.trainer.threaded import ThreadedTrainer
from ludus.types import Action, Message, Observation, Trajectory, Turn
from ludus.worlds.guess import Guess

SIZES = ((4, 4), (8, 8))  # groups per step, and trajectories in each
STALENESS = {"asynchronous": 1, "synchronous": 0}
MAX_TURNS = Guess().max_turns
MAX_TOKENS = 128  # of all turns after the prompt: twice what a whole game needs, so that the limit decides nothing
TEMPERATURE, LR, BETAS = 1.0, 1e-4, (0.9, 0.95)
FOUND, LOST = "found", "lost"
NOTES = (
    "TRL cannot be told by an environment that a game is over: its model was taught to end it with an empty turn, one sampled token more",
    "TRL limits tokens per trajectory, not per turn; ours gets the same number for both",
    "ours publishes weights, probes them and writes trajectories, metrics and TensorBoard, as by default; TRL logs nothing",
    "both train on all groups, also those without a difference in reward",
)


@dataclass(frozen=True)
class Work:
    """What both sides have to do, and the CPU they may use for it."""

    groups_per_step: int
    group_size: int
    steps: int
    threads: int

    @property
    def step_trajectories(self) -> int:
        return self.groups_per_step * self.group_size


@dataclass(frozen=True)
class Measured:
    """One training. The means are over the trajectories that were played."""

    trajectories_per_s: float
    calls: float
    reward: float


def measured(work: Work, *, seconds: float, calls: list[int], rewards: list[float]) -> Measured:
    rate = work.steps * work.step_trajectories / seconds
    return Measured(rate, calls=statistics.mean(calls), reward=statistics.mean(rewards))


# ------------------------------------------------------------------------------------------------ the model


async def warm_start(folder: Path, *, threads: int) -> Path:
    """A tiny model that plays badly by the rules, and that says nothing once a game is over."""
    sft = {"mistakes": 0.5, "num_trajectories": 500, "steps": 100, "batch_tokens": 2048, "lr": 3e-3}
    config = parse_config({"environments": {"guess": {}}, "sft": sft, "trainer": {"threads": threads}})
    context = await make_model_context(config, folder=folder)
    try:
        played = await solver_trajectories(context)
    finally:
        await context.client.close()
    sequences = [s for trajectory in played for s in sequences_of(with_farewell(trajectory), context.chat)]
    model = context.load_model()
    trainer = cloning_trainer(model, config=config.sft, trainer=config.trainer, seed=0)
    await clone(ThreadedTrainer(trainer), sequences, config=config.sft, seed=0)
    return save_model(folder / "warm", model=model, tokenizer=context.tokenizer)


def with_farewell(trajectory: Trajectory) -> Trajectory:
    *earlier, last = trajectory.turns
    verdict = Observation((Message("tool", FOUND if trajectory.success else LOST, name="guess"),))
    farewell = Turn(len(trajectory.turns), Action(), Observation())
    return replace(trajectory, turns=(*earlier, replace(last, observation=verdict), farewell))


# ------------------------------------------------------------------------------------------------ ours


def ours(model: str, folder: str, work: Work, *, max_staleness: int) -> Measured:
    started, ended = 0.0, 0.0
    calls: list[int] = []
    rewards: list[float] = []

    def begin(_: object) -> None:
        nonlocal started
        started = time.perf_counter()

    def listen(kind: str, fields: Mapping[str, Any]) -> None:
        nonlocal ended
        if kind == "metrics":
            ended = time.perf_counter()
        elif kind == "trajectory":
            calls.append(sum(len(turn.action.tool_calls) for turn in fields["trajectory"].turns))
            rewards.append(fields["trajectory"].reward)

    config = run_config(model, folder, work, max_staleness=max_staleness)
    asyncio.run(train(config, listeners=[listen], on_loop=begin))
    return measured(work, seconds=ended - started, calls=calls, rewards=rewards)


def run_config(model: str, folder: str, work: Work, *, max_staleness: int) -> RunConfig:
    # Engine and trainer work at the same time when asynchronous, and then share the threads.
    each = max(1, work.threads // 2) if max_staleness else work.threads
    prompt_room = 64
    rollout = {
        "group_size": work.group_size,
        "max_turn_tokens": MAX_TOKENS,
        "max_tokens": MAX_TOKENS + prompt_room,
        "temperature": TEMPERATURE,
    }
    data = {
        "name": f"run-{time.monotonic_ns()}",
        "model": {"name": model, "device": "cpu"},
        "environments": {"guess": {}},
        "rollout": rollout,
        "engine": {"threads": each},
        "pipeline": {"steps": work.steps, "groups_per_step": work.groups_per_step, "max_staleness": max_staleness},
        "algorithm": {"filter": "none"},
        "trainer": {"lr": LR, "betas": BETAS, "threads": each},
        "store": {"folder": folder, "checkpoint_every": 0},
    }
    return parse_config(data)


# ------------------------------------------------------------------------------------------------ theirs


class GuessForTrl:
    """The game as TRL wants it: `reset`, a reward at the end, and every other public method a tool."""

    def reset(self, *, low: int, high: int, secret: int, **_: object) -> str:
        self._game, self._calls, self._reward = Guess(), 0, 0.0
        return self._game.setup({"low": low, "high": high, "secret": secret}, random.Random(0))

    def guess(self, number: int) -> str:
        """Guess.

        Args:
            number: The number.
        """
        self._calls += 1
        reply = self._game.guess(number)
        self._reward += reply.reward
        return LOST if self._calls >= MAX_TURNS and not reply.done else reply.text

    def get_reward(self) -> float:
        return self._reward


def theirs(model: str, folder: str, work: Work) -> Measured:
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOTrainer

    clock: list[float] = []
    calls: list[int] = []
    rewards: list[float] = []

    class Watch(TrainerCallback):
        def on_train_begin(self, *_: object, **__: object) -> None:
            clock.append(time.perf_counter())

        def on_step_end(self, *_: object, **__: object) -> None:
            clock.append(time.perf_counter())
            calls.extend(game._calls for game in trainer.environments)
            rewards.extend(game._reward for game in trainer.environments)

    trainer = GRPOTrainer(
        model=load_model(model, device="cpu"),
        args=trl_config(folder, work),
        train_dataset=trl_tasks(),
        processing_class=trl_tokenizer(model),
        environment_factory=GuessForTrl,
        callbacks=[Watch()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return measured(work, seconds=clock[-1] - clock[0], calls=calls, rewards=rewards)


def trl_config(folder: str, work: Work) -> Any:
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=folder,
        max_steps=work.steps,
        num_generations=work.group_size,
        per_device_train_batch_size=work.step_trajectories,
        max_completion_length=MAX_TOKENS,
        max_tool_calling_iterations=MAX_TURNS,
        temperature=TEMPERATURE,
        learning_rate=LR,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        weight_decay=0.0,
        lr_scheduler_type="constant",
        gradient_checkpointing=False,  # its default saves memory and costs time
        bf16=False,
        use_cpu=True,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
    )


def trl_tasks() -> Any:
    from datasets import Dataset

    prompt = [{"role": "system", "content": Guess.__doc__}, {"role": "user", "content": ""}]  # reset() says the rest
    return Dataset.from_list([{"prompt": prompt, **task} for task in Guess().tasks("train")])


def trl_tokenizer(model: str) -> Any:
    """With the one thing TRL needs beside a chat template: how to read an action."""
    tokenizer: Any = load_tokenizer(model)
    call = {"open": "<tool_call>", "close": "</tool_call>", "repeats": True, "content": "json"}
    tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|assistant|>",
        "fields": {
            "tool_calls": {**call, "transform": {"type": "function", "function": "{content}"}},
            "content": {"close": tokenizer.eos_token, "content": "text"},
        },
    }
    return tokenizer


# ------------------------------------------------------------------------------------------------ the comparison


def confine(threads: int) -> None:
    """This process, for good, to as many cores and torch threads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    torch.set_num_threads(threads)


def side(threads: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        1, mp_context=multiprocessing.get_context("spawn"), initializer=confine, initargs=(threads,)
    )


def compare(folder: Path, *, repeats: int, steps: int, threads: int) -> None:
    with side(threads) as ludus, side(threads) as trl:
        model = str(ludus.submit(warm_started, folder, threads=threads).result())
        for groups_per_step, group_size in SIZES:
            work = Work(groups_per_step, group_size, steps=steps, threads=threads)
            one_round(ludus, trl, model, str(folder), replace(work, steps=1))  # a warm-up, not counted
            rounds = [one_round(ludus, trl, model, str(folder), work) for _ in range(repeats)]
            for mode in STALENESS:
                print(json.dumps(summary(mode, rounds, work)), flush=True)


def one_round(
    ludus: ProcessPoolExecutor, trl: ProcessPoolExecutor, model: str, folder: str, work: Work
) -> dict[str, Measured]:
    """Every kind of run once, one after the other, TRL's between our two."""
    asynchronous, synchronous = STALENESS
    return {
        asynchronous: ludus.submit(ours, model, folder, work, max_staleness=STALENESS[asynchronous]).result(),
        "trl": trl.submit(theirs, model, folder, work).result(),
        synchronous: ludus.submit(ours, model, folder, work, max_staleness=STALENESS[synchronous]).result(),
    }


def warm_started(folder: Path, *, threads: int) -> Path:
    return asyncio.run(warm_start(folder, threads=threads))


def summary(mode: str, rounds: list[dict[str, Measured]], work: Work) -> dict[str, Any]:
    def middle(side: str, field: str) -> float:
        values: list[float] = [getattr(one[side], field) for one in rounds]
        return round(statistics.median(values), 2)

    ratios = [one[mode].trajectories_per_s / one["trl"].trajectories_per_s for one in rounds]
    return {
        "case": f"versus_trl/{work.groups_per_step}x{work.group_size}/{mode}",
        "ratio": round(statistics.median(ratios), 2),
        "ludus_trajectories_per_s": middle(mode, "trajectories_per_s"),
        "trl_trajectories_per_s": middle("trl", "trajectories_per_s"),
        "ludus_calls_per_trajectory": middle(mode, "calls"),
        "trl_calls_per_trajectory": middle("trl", "calls"),
        "ludus_reward": middle(mode, "reward"),
        "trl_reward": middle("trl", "reward"),
        "max_staleness": STALENESS[mode],
        "steps": work.steps,
        "repeats": len(rounds),
        "threads": work.threads,
        "notes": NOTES,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--steps", type=int, default=16, help="few steps count the first, when nothing is trained yet, for much"
    )
    parser.add_argument("--threads", type=int, default=2, help="cores and torch threads of each side")
    options = parser.parse_args()
    if importlib.util.find_spec("trl") is None:
        print(json.dumps({"case": "versus_trl", "skipped": "pip install ludus[benchmark]"}), flush=True)
        return
    os.environ |= {"OMP_NUM_THREADS": str(options.threads), "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), repeats=options.repeats, steps=options.steps, threads=options.threads)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
