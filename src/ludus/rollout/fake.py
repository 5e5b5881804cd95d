"""A player without environment and engine, for tests: rewards are scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np

from ludus.rollout.play import session_of
from ludus.rollout.player import OnTrajectory, PlayerStats, assembled, ignore
from ludus.types import Action, Group, Observation, Order, Sequence, Stop, Trajectory, Turn, frozen_array


class FakePlayer:
    """Plays one turn of one token per attempt, sampled under the order's `born`; `reward(order,
    attempt)` None fails the attempt. `break_with` makes the player unable to play from then on."""

    def __init__(self, reward: Callable[[Order, int], float | None], *, latency_s: float = 0.0) -> None:
        self._reward, self._latency_s = reward, latency_s
        self._broken: asyncio.Future[None] | None = None
        self.orders: list[Order] = []
        self.closed = False

    async def play(self, order: Order, *, on_trajectory: OnTrajectory = ignore) -> Group:
        self.orders.append(order)
        await asyncio.sleep(self._latency_s)
        played = []
        for attempt in order.attempts or (0,):
            for retry in range(order.retries + 1):
                played.append(self._played(order, attempt=attempt, retry=retry))
                on_trajectory(played[-1])
                if played[-1].stop.scored:
                    break
        return assembled(order, played)

    def stats(self) -> PlayerStats:
        return PlayerStats({}, ())

    def break_with(self, error: Exception) -> None:
        self._ending().set_exception(error)

    async def ended(self) -> None:
        await asyncio.shield(self._ending())

    async def close(self) -> None:
        self.closed = True

    def _ending(self) -> asyncio.Future[None]:
        if self._broken is None:
            self._broken = asyncio.get_running_loop().create_future()
        return self._broken

    def _played(self, order: Order, *, attempt: int, retry: int) -> Trajectory:
        session_id, seed = session_of(order, attempt=attempt, retry=retry)
        reward = self._reward(order, attempt)
        if reward is None:
            stop, failure = Stop.FAILED, "EnvironmentFailed: scripted"
            return Trajectory(session_id, order.task, attempt, seed, Observation(), (), (), stop, failure)
        observation = Observation(reward=reward, done=True)
        turn = Turn(0, Action("x"), observation, order.policy, order.born, num_tokens=1)
        sequence = Sequence(
            ids=frozen_array([1], np.int32),
            sampled=frozen_array([True], bool),
            logprobs=frozen_array([-1.0], np.float32),
            versions=frozen_array([order.born], np.int32),
            turns=frozen_array([0], np.int32),
        )
        return Trajectory(session_id, order.task, attempt, seed, Observation(), (turn,), (sequence,), Stop.DONE)
