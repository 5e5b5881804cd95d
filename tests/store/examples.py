"""Trajectories to store, report and show."""

import numpy as np

from ludus.types import (
    Action,
    Message,
    Observation,
    Sequence,
    Stop,
    Task,
    Tool,
    ToolCall,
    Trajectory,
    Turn,
    frozen_array,
)

GUESS = Tool("guess", "Guess a number.", {"type": "object", "properties": {"number": {"type": "integer"}}})


def make_trajectory(name="t0", *, environment="guess", reward=1.0, stop=Stop.DONE, num_turns=2, version=3, failure=""):
    task = Task(f"{environment}/train/0", environment, "train", {"low": 1, "high": 9})
    start = Observation(messages=(Message("system", "Guess it."), Message("user", "1 to 9?")), tools=(GUESS,))
    turns = tuple(_turn(index, last=index == num_turns - 1, reward=reward) for index in range(num_turns))
    sequence = make_sequence([False, False, True, True] * num_turns, version=version)
    return Trajectory(
        name, task, attempt=1, seed=7, start=start, turns=turns, sequences=(sequence,), stop=stop, failure=failure
    )


def make_sequence(sampled, *, version=3):
    mask = np.array(sampled, dtype=bool)
    generator = np.random.default_rng(0)
    return Sequence(
        ids=frozen_array(generator.integers(0, 50_000, len(mask)), np.int32),
        sampled=frozen_array(mask, np.bool_),
        logprobs=frozen_array(np.where(mask, -generator.exponential(size=len(mask)), 0), np.float32),
        versions=frozen_array(np.where(mask, version, -1), np.int32),
        turns=frozen_array(np.arange(len(mask)) // 4, np.int32),
    )


def _turn(index, *, last, reward):
    call = ToolCall("guess", {"number": 5 + index}, id=f"call_{index}")
    answer = Observation(messages=(Message("tool", "too low", tool_call_id=call.id),), invalid=not last and index > 0)
    if last:
        answer = Observation(reward=reward, done=True, metrics={"success": float(reward > 0)})
    return Turn(index, Action("I try.", (call,)), answer, version=3, num_prompt_tokens=2, num_tokens=2, generate_s=0.25)
