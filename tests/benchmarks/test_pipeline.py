"""The benchmark of the pipeline, at its smallest."""

from __future__ import annotations

import asyncio
import random
import sys
from argparse import Namespace
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def pipeline(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import pipeline as module

    yield module
    sys.modules.pop("pipeline", None)


def test_a_side_is_measured_from_the_first_step_that_counts(pipeline, blank_model, tmp_path):
    given = Namespace(device="cpu", world="fake", tail=1.5, groups=1, group_size=2, steps=3, processes=0)
    config = pipeline.run_config(given, tmp_path, name="r", model=str(blank_model), latency_s=0.0, bound=1, seed=0)
    side = pipeline.measured(config, skip=1)
    assert side["trained"] == 4.0, "two attempts in each of the two steps that count"
    assert side["per_s"] > 0
    assert side["pause_ms"] > 0
    assert 0 < side["trainer_busy"] <= 1


def test_the_slow_world_is_textcraft_with_latency(pipeline):
    environment = pipeline.SlowTextcraft(latency_s=1e-4)
    task = environment.tasks("train")[0]

    async def main():
        session = environment.open(task, seed=0)
        observation = await session.start()
        for _ in range(pipeline.TURNS):
            if observation.done:
                break
            observation = await session.act(session.solve())
        session.random_action(random.Random(0))
        session.close()
        return observation

    observation = asyncio.run(main())
    assert observation.done
    assert observation.reward > 0
