"""Groups small enough to enumerate: a prompt token, then what was sampled."""

from dataclasses import replace

import numpy as np

from ludus.types import Action, Group, Message, Observation, Sequence, Stop, Task, Trajectory, Turn, frozen_array

PROMPT = 0


def make_sequence(sampled_ids=(1, 2), *, logprobs=None, prompt=(PROMPT,)):
    ids = [*prompt, *sampled_ids]
    mask = np.arange(len(ids)) >= len(prompt)
    logprobs = [-1.0] * len(sampled_ids) if logprobs is None else list(logprobs)
    return Sequence(
        ids=frozen_array(ids, np.int32),
        sampled=frozen_array(mask, np.bool_),
        logprobs=frozen_array([0.0] * len(prompt) + logprobs, np.float32),
        versions=frozen_array(np.where(mask, 0, -1), np.int32),
        turns=frozen_array(np.zeros(len(ids)), np.int32),
    )


def make_trajectory(name="t", *, reward=0.0, sequences=None, task=None):
    task = task or Task("bandit/train/0", "bandit", "train")
    turn = Turn(0, Action("x"), Observation(reward=reward, done=True))
    sequences = (make_sequence(),) if sequences is None else tuple(sequences)
    return Trajectory(
        name, task, attempt=0, seed=0, start=Observation(), turns=(turn,), sequences=sequences, stop=Stop.DONE
    )


def make_group(rewards, *, sequences=None, environment="bandit", name="g"):
    """`sequences[i]` are the sequences of trajectory i; one of two sampled tokens each when left out."""
    task = Task(f"{environment}/train/{name}", environment, "train")
    trajectories = tuple(
        make_trajectory(f"{name}{i}", reward=reward, sequences=sequences[i] if sequences else None, task=task)
        for i, reward in enumerate(rewards)
    )
    return Group(name, task, trajectories)


def make_conversation(actions, rewards, *, observations=None, name="t", task=None, logprobs=None):
    """A trajectory of several turns in one sequence: `actions[k]` are the ids sampled in turn k, which earned `rewards[k]`, and
    `observations[k]` is the text seen before turn k; one observation token (PROMPT) stands before each turn."""
    task = task or Task("walk/train/0", "walk", "train")
    texts = [f"turn {k}" for k in range(len(actions))] if observations is None else list(observations)
    ids = [token for said in actions for token in (PROMPT, *said)]
    sampled = np.array([place > 0 for said in actions for place in range(len(said) + 1)])
    logs = np.zeros(len(ids))
    logs[sampled] = -1.0 if logprobs is None else [value for said in logprobs for value in said]
    sequence = Sequence(
        ids=frozen_array(ids, np.int32),
        sampled=frozen_array(sampled, np.bool_),
        logprobs=frozen_array(logs, np.float32),
        versions=frozen_array(np.where(sampled, 0, -1), np.int32),
        turns=frozen_array([k for k, said in enumerate(actions) for _ in range(len(said) + 1)], np.int32),
    )
    seen = [Observation(messages=(Message("user", text),)) for text in (*texts, "over")]
    turns = tuple(
        Turn(k, Action("x"), replace(seen[k + 1], reward=reward, done=k + 1 == len(actions)))
        for k, reward in enumerate(rewards)
    )
    return Trajectory(name, task, attempt=0, seed=0, start=seen[0], turns=turns, sequences=(sequence,), stop=Stop.DONE)


def group_of(trajectories, *, name="g"):
    return Group(name, trajectories[0].task, tuple(trajectories))
