"""Players of worlds for the tests next to this: the solver, with as many mistakes as wanted."""

import json
import os
import random
from functools import cache

import pytest

from ludus.environments import make
from ludus.environments.registry import BUILT_IN

HEAVY = ("shell", "babyai", "sciworld", "household", "browser")
"""Worlds that need a sandbox or other people's packages: what holds for all worlds is tested in their own files."""
PLAIN = tuple(name for name in BUILT_IN if name not in HEAVY)

patient = pytest.mark.skipif(not os.environ.get("LUDUS_SLOW"), reason="takes a minute: LUDUS_SLOW=1 runs it")


@cache
def _world(name, options):
    return make(name, options=dict(options))


def world(name, **options):
    """Made once: its tasks are drawn once."""
    return _world(name, tuple(sorted(options.items())))


def play(environment, *, task, seed, mistakes=0.0):
    session, rng = environment.open(task, seed=seed), random.Random(seed)
    seen = [session.start()]
    while not seen[-1].done and len(seen) <= environment.max_turns:
        seen.append(session.act(session.random_action(rng) if rng.random() < mistakes else session.solve()))
    session.close()
    return seen


def won(seen):
    metrics = {name: value for observation in seen for name, value in observation.metrics.items()}
    return metrics.get("success", sum(observation.reward for observation in seen)) >= 1


def success(environment, *, mistakes, count=300):
    tasks = environment.tasks("train")
    return (
        sum(won(play(environment, task=tasks[i % len(tasks)], seed=i, mistakes=mistakes)) for i in range(count)) / count
    )


def contents(environment, split):
    return {json.dumps(dict(task.data), sort_keys=True) for task in environment.tasks(split)}
