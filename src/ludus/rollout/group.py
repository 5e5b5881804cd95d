"""n sessions of one task, to be compared with each other. Promise: a failed attempt is retried or left out, never scored as 0."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ludus.rollout.arena import Arena
from ludus.rollout.play import Attempt, play
from ludus.seeds import derive
from ludus.types import Group, Task, Trajectory


async def play_group(
    group_id: str,
    task: Task,
    *,
    arena: Arena,
    seed: int,
    size: int,
    retries: int = 0,
    born: int = 0,
    on_trajectory: Callable[[Trajectory], None] = lambda trajectory: None,
) -> Group:
    """Same task and first prompt, different noise. Scored attempts are its trajectories, the others its failed ones.

    `on_trajectory` hears of each as soon as it is over: a process that is killed meanwhile must not lose what was finished.
    """

    async def one(index: int) -> list[Trajectory]:
        tried: list[Trajectory] = []
        for retry in range(retries + 1):
            session_id = f"{group_id}.{index}" + (f"r{retry}" if retry else "")
            attempt = Attempt(session_id=session_id, task=task, seed=derive(seed, index, retry), index=index)
            tried.append(await play(attempt, arena=arena))
            on_trajectory(tried[-1])
            if tried[-1].stop.scored:
                break
        return tried

    async with asyncio.TaskGroup() as attempts:
        running = [attempts.create_task(one(index)) for index in range(size)]
    played = [trajectory for attempt in running for trajectory in attempt.result()]
    scored = tuple(trajectory for trajectory in played if trajectory.stop.scored)
    failed = tuple(trajectory for trajectory in played if not trajectory.stop.scored)
    return Group(id=group_id, task=task, trajectories=scored, born=born, failed=failed)
