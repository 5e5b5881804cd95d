"""The rollout context: everything a session is played with, shared by all sessions of a process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ludus.config import RolloutConfig
from ludus.controller.client.client import Client
from ludus.rollout.chat import Chat
from ludus.rollout.cross_policy import Draw
from ludus.rollout.sampler import Sampler
from ludus.types import Order


class Activity:
    """What every live session is waiting for, and the seconds of all sessions by activity."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._live: dict[str, tuple[str, str, float]] = {}
        self._spent: dict[str, float] = {}
        self._clock = clock

    def note(self, session_id: str, doing: str, *, task_id: str = "") -> None:
        self.forget(session_id)
        self._live[session_id] = (task_id, doing, self._clock())

    def forget(self, session_id: str) -> None:
        if ended := self._live.pop(session_id, None):
            _, doing, since = ended
            self._spent[doing] = self._spent.get(doing, 0.0) + self._clock() - since

    def spent(self) -> dict[str, float]:
        """Seconds of all sessions so far by activity, live ones included."""
        now, spent = self._clock(), self._spent.copy()
        for _, doing, since in self._live.values():
            spent[doing] = spent.get(doing, 0.0) + now - since
        return spent

    def doing(self, session_id: str) -> str:
        return self._live.get(session_id, ("", "", 0.0))[1]

    def longest(self, count: int = 3) -> tuple[str, ...]:
        """The sessions that have waited longest: "g000004.1 (guess/train/3): acting for 61 s"."""
        now = self._clock()
        oldest = sorted(self._live.items(), key=lambda item: item[1][2])[:count]
        return tuple(f"{session} ({task}): {doing} for {now - since:.0f} s" for session, (task, doing, since) in oldest)


@dataclass(frozen=True, slots=True)
class RolloutContext:
    client: Client
    sampler: Sampler
    chat: Chat | None
    """None for a sampler that answers in text."""
    limits: RolloutConfig
    max_turns: Mapping[str, int] = field(default_factory=dict)
    """By environment, where it differs from limits.max_turns."""
    draw: Draw = "turn"
    seed: int = 0
    """The run's, for policies that are drawn once per session."""
    activity: Activity = field(default_factory=Activity)

    def max_turns_of(self, order: Order) -> int:
        if order.max_turns is not None:
            return order.max_turns
        return self.max_turns.get(order.task.environment, self.limits.max_turns)
