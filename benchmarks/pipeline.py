"""Asynchronous against synchronous training, with environments whose latency has a heavy tail.

The same work on both sides: the same tiny model, tasks, group size and number of optimiser steps, and so the same number of
trajectories trained; only pipeline.max_staleness differs (2 against 0). A call into the environment takes 30 ms in the median and is
Pareto distributed, so that now and then one takes seconds. The sides take turns; the ratio is of trajectories trained per second.

    python benchmarks/pipeline.py --repeats 3 --steps 12
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from ludus.config import RunConfig, parse_config
from ludus.launch.local import train

LATENCY_S, TAIL = 0.03, 1.4
GROUPS_PER_STEP, GROUP_SIZE = 4, 8


def run_config(folder: Path, *, name: str, max_staleness: int, steps: int, seed: int) -> RunConfig:
    options = {"latency_s": LATENCY_S, "tail": TAIL, "blocking": False, "turns": 4}
    return parse_config(
        {
            "name": name,
            "seed": seed,
            "model": {"name": "tiny", "device": "cpu"},
            "environments": {"fake": {"source": "ludus.environments.fake:FakeEnvironment", "options": options}},
            "rollout": {"group_size": GROUP_SIZE, "max_turn_tokens": 4, "max_tokens": 256, "max_invalid": 8},
            "pipeline": {"steps": steps, "groups_per_step": GROUPS_PER_STEP, "max_staleness": max_staleness},
            "algorithm": {"filter": "none"},  # an untrained model seldom scores: every group is trained all the same
            "trainer": {"lr": 1e-5},
            "store": {"folder": str(folder), "trajectories": False, "tensorboard": False, "checkpoint_every": 0},
        }
    )


def trajectories_per_s(config: RunConfig) -> dict[str, float]:
    trained, dropped, began, ended = 0.0, 0.0, 0.0, 0.0

    def listen(kind: str, fields: Any) -> None:
        nonlocal trained, dropped, began, ended
        if kind == "started":
            began = time.perf_counter()
        elif kind == "metrics":
            trained += fields["trajectories/trained"]
            dropped += sum(value for name, value in fields.items() if name.startswith("groups/dropped"))
            ended = time.perf_counter()

    asyncio.run(train(config, listeners=[listen]))
    return {"per_s": trained / (ended - began), "trained": trained, "dropped_groups": dropped}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    given = parser.parse_args()
    torch.set_num_threads(1)
    sides: dict[str, list[dict[str, float]]] = {"asynchronous": [], "synchronous": []}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(given.repeats):
            for side, bound in (("asynchronous", 2), ("synchronous", 0)):
                name = f"{side}-{repeat}"
                config = run_config(Path(folder), name=name, max_staleness=bound, steps=given.steps, seed=repeat)
                sides[side].append(trajectories_per_s(config))
    ratios = [a["per_s"] / s["per_s"] for a, s in zip(sides["asynchronous"], sides["synchronous"], strict=True)]
    line = {
        "case": "pipeline/heavy_tail",
        "ratio": round(statistics.median(ratios), 2),
        "ratios": [round(ratio, 2) for ratio in ratios],
        "asynchronous_per_s": round(statistics.median(r["per_s"] for r in sides["asynchronous"]), 2),
        "synchronous_per_s": round(statistics.median(r["per_s"] for r in sides["synchronous"]), 2),
        "trained": sides["asynchronous"][0]["trained"],
        "asynchronous_dropped_groups": [r["dropped_groups"] for r in sides["asynchronous"]],
        "latency_s": LATENCY_S,
        "tail": TAIL,
        "threads": 1,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
