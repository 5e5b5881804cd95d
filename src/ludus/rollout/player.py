"""The Player role: an order becomes a group. Promise: a failed attempt is never scored as 0."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ludus.errors import first_fault
from ludus.rollout.context import RolloutContext
from ludus.rollout.play import play
from ludus.types import Group, Order, Trajectory

MAX_CONCURRENT = 64
"""Sessions that `play_all` plays at once."""
OnTrajectory = Callable[[Trajectory], None]
"""Called with each trajectory when it ends: a process that is killed loses no finished one."""


def ignore(trajectory: Trajectory) -> None:  # noqa: ARG001
    return None


@dataclass(frozen=True, slots=True)
class PlayerStats:
    spent: Mapping[str, float]
    """Seconds of all sessions so far, by activity."""
    longest: tuple[str, ...]
    """The sessions that have waited longest, and for what."""


class Player(Protocol):
    """Plays sessions, in this process or in others."""

    async def play(self, order: Order, *, on_trajectory: OnTrajectory = ignore) -> Group: ...

    def stats(self) -> PlayerStats: ...

    async def ended(self) -> None:
        """Never returns while the player works; raises the cause when it can play no longer."""

    async def close(self) -> None: ...


class LocalPlayer:
    """Plays in this process. The client and the sampler belong to the caller, who closes them."""

    def __init__(self, context: RolloutContext) -> None:
        self._context = context

    async def play(self, order: Order, *, on_trajectory: OnTrajectory = ignore) -> Group:
        """All attempts at once: same task and first prompt, different noise."""

        async def one(attempt: int) -> list[Trajectory]:
            tried: list[Trajectory] = []
            for retry in range(order.retries + 1):
                tried.append(await play(order, attempt=attempt, retry=retry, context=self._context))
                on_trajectory(tried[-1])
                if tried[-1].stop.scored:
                    break
            return tried

        async with asyncio.TaskGroup() as attempts:
            running = [attempts.create_task(one(index)) for index in order.attempts or (0,)]
        return assembled(order, (trajectory for attempt in running for trajectory in attempt.result()))

    def stats(self) -> PlayerStats:
        activity = self._context.activity
        return PlayerStats(activity.spent(), activity.longest())

    async def ended(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        return None


async def play_all(
    orders: Sequence[Order], *, player: Player, on_trajectory: OnTrajectory = ignore
) -> list[Trajectory]:
    """One session per order, MAX_CONCURRENT at once; the trajectories in the order of `orders`."""
    free = asyncio.Semaphore(MAX_CONCURRENT)

    async def one(order: Order) -> Trajectory:
        async with free:
            group = await player.play(order)
        trajectory = (*group.failed, *group.trajectories)[-1]  # scored, or else the last try
        on_trajectory(trajectory)
        return trajectory

    try:
        async with asyncio.TaskGroup() as playing:
            running = [playing.create_task(one(order)) for order in orders]
    except BaseExceptionGroup as faults:
        raise first_fault(faults) from faults
    return [task.result() for task in running]


def assembled(order: Order, played: Iterable[Trajectory]) -> Group:
    """Scored attempts are the group's trajectories, the others its failed ones; by attempt."""
    by_attempt = sorted(played, key=lambda trajectory: trajectory.attempt)
    scored = tuple(trajectory for trajectory in by_attempt if trajectory.stop.scored)
    failed = tuple(trajectory for trajectory in by_attempt if not trajectory.stop.scored)
    return Group(id=order.id, task=order.task, trajectories=scored, born=order.born, failed=failed)
