"""n sessions of one task, to be compared with each other. Promise: a failed attempt is retried or left out, never scored as 0."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from ludus.rollout.arena import Arena
from ludus.rollout.play import Attempt, play
from ludus.seeds import derive
from ludus.types import Group, Task, Trajectory

OnTrajectory = Callable[[Trajectory], None]
"""Hears of each trajectory as soon as it is over: a process that is killed meanwhile must not lose what was finished."""


@dataclass(frozen=True, slots=True)
class Order:
    """A group to be played."""

    group_id: str
    task: Task
    seed: int
    size: int
    retries: int = 0
    born: int = 0
    max_turns: int | None = None
    """Where it differs from what the environment has otherwise."""


class GroupPlayer(Protocol):
    """Plays groups, in this process or in others. What its sessions wait for: see Activity."""

    async def play(self, order: Order, *, on_trajectory: OnTrajectory) -> Group: ...

    def spent(self) -> dict[str, float]: ...

    def longest(self) -> list[str]: ...


class PlaysHere:
    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.spent, self.longest = arena.activity.spent, arena.activity.longest

    async def play(self, order: Order, *, on_trajectory: OnTrajectory) -> Group:
        arena, environment = self._arena, order.task.environment
        if order.max_turns is not None:
            arena = replace(arena, max_turns={**arena.max_turns, environment: order.max_turns})
        return await play_group(order, arena=arena, on_trajectory=on_trajectory)


async def play_group(order: Order, *, arena: Arena, on_trajectory: OnTrajectory = lambda trajectory: None) -> Group:
    """Same task and first prompt, different noise."""

    async def one(index: int) -> list[Trajectory]:
        tried: list[Trajectory] = []
        for retry in range(order.retries + 1):
            session_id = f"{order.group_id}.{index}" + (f"r{retry}" if retry else "")
            seed = derive(order.seed, index, retry)
            attempt = Attempt(session_id=session_id, task=order.task, seed=seed, index=index)
            tried.append(await play(attempt, arena=arena))
            on_trajectory(tried[-1])
            if tried[-1].stop.scored:
                break
        return tried

    async with asyncio.TaskGroup() as attempts:
        running = [attempts.create_task(one(index)) for index in range(order.size)]
    return assembled(order, (trajectory for attempt in running for trajectory in attempt.result()))


def assembled(order: Order, played: Iterable[Trajectory]) -> Group:
    """Scored attempts are its trajectories, the others its failed ones, whichever was over first."""
    by_attempt = sorted(played, key=lambda trajectory: trajectory.attempt)
    scored = tuple(trajectory for trajectory in by_attempt if trajectory.stop.scored)
    failed = tuple(trajectory for trajectory in by_attempt if not trajectory.stop.scored)
    return Group(id=order.group_id, task=order.task, trajectories=scored, born=order.born, failed=failed)
