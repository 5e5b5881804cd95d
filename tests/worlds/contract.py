"""What every larger world owes, whatever it is about."""

import json
import random

from ludus.types import Action, ToolCall
from tests.worlds.playing import play, won

SPLITS = ("train", "dev", "test")
MEGABYTE = "x" * 1_000_000


def assert_splits_are_apart(environment, *, by):
    """No task twice, no id twice, and no value of `by(task.data)` in two splits."""
    tasks = {split: environment.tasks(split) for split in SPLITS}
    assert all(tasks.values())
    keys = {split: {by(task.data) for task in found} for split, found in tasks.items()}
    assert not keys["train"] & keys["dev"]
    assert not keys["train"] & keys["test"]
    assert not keys["dev"] & keys["test"]
    every = [task for found in tasks.values() for task in found]
    assert len({task.id for task in every}) == len(every)
    contents = [json.dumps({k: v for k, v in task.data.items() if k != "id"}, sort_keys=True) for task in every]
    assert len(set(contents)) == len(contents)
    assert environment.tasks("no such split") == []


def assert_the_solver_wins(environment, *, count=40):
    for split in SPLITS:
        for seed, task in enumerate(environment.tasks(split)[:count]):
            assert won(play(environment, task=task, seed=seed)), task.id


def random_success(environment, *, count=60):
    tasks = environment.tasks("train")
    picked = [tasks[i * len(tasks) // count] for i in range(count)]
    return sum(won(play(environment, task=task, seed=i, mistakes=1.0)) for i, task in enumerate(picked)) / count


def first_prompts(environment, *, count=200):
    """(task, everything the model reads before its first turn), for the leak tests."""
    for split in SPLITS:
        for task in environment.tasks(split)[:count]:
            session = environment.open(task, seed=0)
            first = session.start()
            session.close()
            yield task, "\n".join(message.content for message in first.messages)


def opened(environment, *, split="test", index=0):
    session = environment.open(environment.tasks(split)[index], seed=0)
    session.start()
    return session


def call(session, name, **arguments):
    return session.act(Action(tool_calls=(ToolCall(name, arguments),)))


def say(session, text):
    return session.act(Action(content=text))


def read(observation):
    return observation.messages[-1].content


def rng():
    return random.Random(0)
