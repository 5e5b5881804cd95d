"""What the learning benchmarks share: a case, its arms at equal budget over seeds, and a line of JSON with intervals.

A small model is warmed up by cloning a mediocre player, once per world; every arm trains it with every seed until a budget of played
trajectories or turns is spent, then plays held-out tasks with noise that is the same for all. Several budgets show how fast it learnt:
each is a run of its own. Runs are processes with one thread.
Intervals are Student's t over seeds, 95 %; a difference pairs the arms by seed, which decides tasks and noise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import sys
import tempfile
import time
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal
from unittest.mock import patch

from ludus.evaluation.statistics import clustered_mean

PRESETS = Path(__file__).parents[1] / "configs" / "presets"
FIRST_SEED = 101
"""Seeds 1 to 4 chose worlds, budgets and settings; what is reported has not been seen then."""
Sections = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Case:
    """One comparison. Sections are those of a run file; an arm's are laid over the case's. The first arm is the baseline, the last the
    method in question."""

    name: str
    question: str
    environments: Sections
    arms: Mapping[str, Sections]
    budgets: tuple[int, ...]
    """What every arm may play: so many trajectories, or turns; the greatest last."""
    unit: Literal["trajectories", "turns"] = "trajectories"
    outcomes: tuple[str, ...] = ("success",)
    """Measures of `run`, the deciding one first."""
    sections: Sections = field(default_factory=dict)
    warm: Mapping[str, Any] = field(default_factory=dict)
    """[sft] of the warm start."""
    novice: Sections = field(default_factory=dict)
    """Environments whose player is cloned instead of the case's own: the same words, but somebody who knows less."""
    presets: Mapping[str, str] = field(default_factory=dict)
    """By arm: the preset that it takes its method from. Without one of them the case is skipped."""


def overlay(*layers: Sections) -> dict[str, dict[str, Any]]:
    joined: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for name, section in layer.items():
            joined[name] = {**joined.get(name, {}), **section}
    return joined


def run_config(case: Case, *, folder: Path, model: str, name: str, seed: int, sections: Sections) -> Any:
    from ludus.config import parse_config

    common: Sections = {
        "model": {"name": model, "device": "cpu", "dtype": "float32"},
        "rollout": {"group_size": 8, "max_turn_tokens": 4, "max_tokens": 640},
        # more steps than any budget allows: the budget ends the run
        "pipeline": {"steps": 100_000, "groups_per_step": 8, "max_staleness": 0},
        "trainer": {"lr": 5e-4},
        "evaluation": {"num_tasks": 200},
        "store": {"folder": str(folder), "trajectories": False, "tensorboard": False, "checkpoint_every": 0},
    }
    data = overlay(common, case.sections, sections)
    return parse_config({**data, "name": name, "seed": seed, "environments": case.environments})


# ------------------------------------------------------------------------------------------------ one run


@contextmanager
def _quietly() -> Iterator[None]:
    """Nothing is changed for good: whoever measures may do something else in the same process."""
    import torch

    from ludus.launch import train as local
    from ludus.pipeline import loop

    torch.set_num_threads(1)
    with (
        warnings.catch_warnings(action="ignore"),  # doubts about an arm are the point of comparing it
        patch.object(local, "write_report", lambda folder: folder.report_file),  # nobody reads it
        patch.object(loop, "MAX_EMPTY_BATCHES", 1_000_000),  # its budget ends a run, also one without a gradient
    ):
        yield


@_quietly()
def warm_up(case: Case, *, folder: Path) -> str:
    """A model of two layers that has watched a player who errs; the folder it was exported to."""
    from ludus.controller.client.local import LocalClient
    from ludus.environments import registry
    from ludus.launch import clone as cloning
    from ludus.launch.corpus import corpus as said_in
    from ludus.models.loading.tiny import make_tiny

    async def said() -> list[str]:
        worlds = [
            registry.make(name, source=section.get("source", ""), options=section.get("options"))
            for name, section in case.environments.items()
        ]
        client = LocalClient(worlds)
        try:
            return [text async for text in said_in(client, client.environments())]
        finally:
            await client.close()

    corpus = asyncio.run(said())
    blank = make_tiny(folder / "blank", corpus=corpus, seed=0, vocab_size=512, layers=2, hidden=64, context=1024)
    sft = {"num_trajectories": 512, "steps": 160, "batch_tokens": 4096, "lr": 3e-3} | dict(case.warm)
    cloned = replace(case, environments={**case.environments, **case.novice})
    config = run_config(cloned, folder=folder, model=str(blank), name="warm", seed=0, sections={"sft": sft})
    return str(asyncio.run(cloning.sft(config))["export"])


@_quietly()
def run(case: Case, sections: Sections, *, seed: int, budget: int, model: str) -> dict[str, float]:
    """One arm with one seed: `success` (and per environment `success/NAME`), `states`, and what was spent."""
    from ludus.launch import train as local

    meter, began = Meter(case.unit, budget=budget), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="ludus-arms-") as folder:
        config = run_config(case, folder=Path(folder), model=model, name="run", seed=seed, sections=sections)
        done = asyncio.run(local.train(config, listeners=[meter], on_loop=meter.watch))
        success = held_out(case, folder=Path(folder), model=done["export"])
    spent = {"trajectories": meter.trajectories, "turns": meter.turns, "steps": done["version"]}
    return {**success, "states": len(meter.states), **spent, "seconds": time.perf_counter() - began}


def held_out(case: Case, *, folder: Path, model: str) -> dict[str, float]:
    """Success on held-out tasks, with the environment's own limit on turns and the current policy alone."""
    from ludus.launch.evaluate import evaluate_model

    config = run_config(case, folder=folder, model=model, name="held-out", seed=0, sections={})
    report = asyncio.run(evaluate_model(config))
    by_name = {f"success/{result['environment']}": result["success"] for result in report["environments"]}
    return {"success": fmean(by_name.values()), **by_name}


class Meter:
    """Counts what is played in training, and stops the run with the first session past the budget: the last batch is still trained."""

    def __init__(self, unit: str, *, budget: int) -> None:
        self.unit, self.budget = unit, budget
        self.trajectories = self.turns = 0
        self.states: set[tuple[str, float]] = set()
        """Distinct (task, position), where the world tells positions."""
        self.stop: Callable[[], None] = lambda: None

    def watch(self, loop: Any) -> None:
        self.stop = loop.stop

    def __call__(self, kind: str, fields: Mapping[str, Any]) -> None:
        if kind != "trajectory" or fields["split"] != "train":
            return
        if getattr(self, self.unit) >= self.budget:
            self.stop()
            return
        trajectory = fields["trajectory"]
        self.trajectories += 1
        self.turns += len(trajectory.turns)
        positions = [turn.observation.metrics.get("position") for turn in trajectory.turns]
        self.states |= {(trajectory.task.id, position) for position in positions if position is not None}


# ------------------------------------------------------------------------------------------------ all runs


SIZES = ("model", "environments", "rollout", "pipeline", "trainer", "engine", "store", "evaluation", "sft", "workers")
"""What a preset says that is no part of its method."""


def ready(case: Case) -> tuple[Case | None, str]:
    """The case with its presets' methods in their arms, or the reason why it cannot be run."""
    found = dict(case.arms)
    for arm, preset in case.presets.items():
        path = PRESETS / f"{preset}.toml"
        if not path.is_file():
            return None, f"no preset {preset!r}"
        told = tomllib.loads(path.read_text(encoding="utf-8"))
        method = {name: part for name, part in told.items() if isinstance(part, dict) and name not in SIZES}
        found[arm] = overlay(method, case.arms[arm])
    return replace(case, arms=found), ""


def compare(cases: Sequence[Case], *, seeds: int, workers: int) -> Iterator[dict[str, Any]]:
    """A line per case, in the order they are finished."""
    os.environ["OMP_NUM_THREADS"] = "1"  # inherited by the processes, before they import torch
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="ludus-warm-") as folder, ProcessPoolExecutor(workers, spawn) as pool:
        yield from _lines(cases, pool=pool, folder=Path(folder), seeds=range(FIRST_SEED, FIRST_SEED + seeds))


Run = tuple[str, int, int]
"""Arm, budget, seed."""


def _lines(
    cases: Sequence[Case], *, pool: ProcessPoolExecutor, folder: Path, seeds: Sequence[int]
) -> Iterator[dict[str, Any]]:
    models = {world_of(case): case for case in cases}
    warming = {
        world: pool.submit(_warmed, case, folder=folder / str(index))
        for index, (world, case) in enumerate(models.items())
    }
    running: dict[Future[dict[str, float]], tuple[Case, Run]] = {}
    for case in cases:
        model, before = warming[world_of(case)].result()
        tell(f"{case.name}: warm start {before['success']:.3f}")
        for arm, budget, seed in runs_of(case, seeds=seeds):
            started = pool.submit(run, case, case.arms[arm], seed=seed, budget=budget, model=model)
            running[started] = case, (arm, budget, seed)
    found: dict[str, dict[Run, dict[str, float]]] = {case.name: {} for case in cases}
    for finished in as_completed(running):
        case, (arm, budget, seed) = running[finished]
        result = found[case.name][arm, budget, seed] = finished.result()
        spent = f"{result['trajectories']:.0f} trajectories, {result['turns']:.0f} turns, {result['steps']:.0f} steps"
        told = ", ".join(f"{name} {result[name]:.3f}" for name in case.outcomes)
        tell(f"{case.name}: {arm}, seed {seed}: {told} ({spent}, {result['seconds']:.1f} s)")
        if len(found[case.name]) == len(runs_of(case, seeds=seeds)):
            yield line_of(case, found[case.name], before=warming[world_of(case)].result()[1])


def runs_of(case: Case, *, seeds: Sequence[int]) -> list[Run]:
    return [(arm, budget, seed) for budget in reversed(case.budgets) for arm in case.arms for seed in seeds]


def world_of(case: Case) -> str:
    """Cases of the same world and player share their warm start."""
    return json.dumps([case.environments, case.novice, case.warm], sort_keys=True)


def _warmed(case: Case, *, folder: Path) -> tuple[str, dict[str, float]]:
    folder.mkdir(parents=True)
    model = warm_up(case, folder=folder)
    return model, held_out(case, folder=folder, model=model)


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------------------ lines


def line_of(case: Case, found: Mapping[Run, Mapping[str, float]], *, before: Mapping[str, float]) -> dict[str, Any]:
    baseline, *others = case.arms
    seeds = sorted({seed for _, _, seed in found})
    outcomes = {}
    for outcome in case.outcomes:
        for budget in case.budgets:
            by_arm = {arm: [found[arm, budget, seed][outcome] for seed in seeds] for arm in case.arms}
            outcomes[f"{outcome} after {budget} {case.unit}"] = {
                "before": _rounded(before.get(outcome)),
                "arms": {arm: {**_interval(own), "values": [round(v, 4) for v in own]} for arm, own in by_arm.items()},
                "against": {arm: _against(by_arm[arm], by_arm[baseline]) for arm in others},
            }
    deciding = outcomes[f"{case.outcomes[0]} after {case.budgets[-1]} {case.unit}"]
    return {
        "case": case.name,
        "question": case.question,
        "baseline": baseline,
        "seeds": len(seeds),
        "ratio": deciding["against"][others[-1]]["ratio"],
        "outcomes": outcomes,
        "spent": {arm: _spent([found[arm, case.budgets[-1], seed] for seed in seeds]) for arm in case.arms},
        "seconds_per_run": round(fmean(result["seconds"] for result in found.values()), 1),
    }


def _spent(results: Sequence[Mapping[str, float]]) -> dict[str, int]:
    """With the greatest budget, on average over seeds."""
    return {unit: round(fmean(result[unit] for result in results)) for unit in ("trajectories", "turns", "steps")}


def _against(values: Sequence[float], baseline: Sequence[float]) -> dict[str, Any]:
    """The difference, paired by seed, and the ratio of the means."""
    difference = _interval([own - other for own, other in zip(values, baseline, strict=True)])
    ratio = fmean(values) / fmean(baseline) if fmean(baseline) else None
    return {"difference": difference, "ratio": _rounded(ratio, digits=2)}


def _interval(values: Sequence[float]) -> dict[str, Any]:
    interval = clustered_mean([[value] for value in values])
    alone = len(values) < 2  # one seed says nothing of others
    return {
        "mean": _rounded(interval.value),
        "low": None if alone else _rounded(interval.low),
        "high": None if alone else _rounded(interval.high),
    }


def _rounded(value: float | None, *, digits: int = 4) -> float | None:
    return None if value is None else round(value, digits)


def table(lines: Iterable[Mapping[str, Any]]) -> str:
    """The lines as Markdown: one row per case, outcome and arm."""
    rows = [
        "| case, seeds | outcome (warm start) | arm | mean [95 %] | against the first arm |",
        "|---|---|---|---|---|",
    ]
    for line in lines:
        if "skipped" in line:
            rows.append(f"| {line['case']} | | | | not run: {line['skipped']} |")
            continue
        what = f"{line['case']}, {line['seeds']}"
        for outcome, told in line["outcomes"].items():
            start = "" if told["before"] is None else f" ({_shown(told['before'])})"
            for arm, interval in told["arms"].items():
                against = told["against"].get(arm)
                shown = f"{_spread(against['difference'], sign='+')}" if against else ""
                rows.append(f"| {what} | {outcome}{start} | {arm} | {_spread(interval)} | {shown} |")
                what = ""
    return "\n".join(rows)


def _spread(interval: Mapping[str, Any], *, sign: str = "") -> str:
    mean = _shown(interval["mean"], sign=sign)
    return (
        mean
        if interval["low"] is None
        else f"{mean} [{_shown(interval['low'], sign=sign)}, {_shown(interval['high'], sign=sign)}]"
    )


def _shown(value: float, *, sign: str = "") -> str:
    return f"{value:{sign}.0f}" if abs(value) >= 20 else f"{value:{sign}.2f}"


def main(cases: Sequence[Case], *, about: str | None) -> None:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", action="append", choices=[case.name for case in cases], metavar="CASE", help="repeatable"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--table", metavar="FILE", help="print these JSON lines as a Markdown table instead")
    given = parser.parse_args()
    if given.table:
        print(table(json.loads(line) for line in Path(given.table).read_text(encoding="utf-8").splitlines() if line))
        return
    runnable = []
    for case in cases:
        if given.only and case.name not in given.only:
            continue
        whole, missing = ready(case)
        if whole:
            runnable.append(whole)
        else:
            print(json.dumps({"case": case.name, "skipped": missing}), flush=True)
    for line in compare(runnable, seeds=given.seeds, workers=given.workers):
        print(json.dumps(line), flush=True)
