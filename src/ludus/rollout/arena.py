"""What sessions are played with: where they run, who speaks, how messages become tokens, and what a session may use."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ludus.config import RunConfig
from ludus.controller.client.client import Client
from ludus.rollout.chat import Chat
from ludus.rollout.conversation import Conversation, InText, InTokens
from ludus.rollout.speaker import Speaker, TextSpeaker
from ludus.types import Task


@dataclass(frozen=True, slots=True)
class Limits:
    """Each limit has its own stop."""

    max_turns: int
    max_turn_tokens: int
    max_tokens: int
    max_invalid: int
    max_observation_chars: int
    turn_timeout_s: float
    session_timeout_s: float
    temperature: float


class Activity:
    """What every live session is waiting for, so that a stall can be explained, and how long they waited for what in all."""

    def __init__(self) -> None:
        self._live: dict[str, tuple[str, str, float]] = {}
        self._spent: dict[str, float] = {}

    def note(self, session_id: str, task: Task, doing: str) -> None:
        self.forget(session_id)
        self._live[session_id] = (task.id, doing, time.monotonic())

    def forget(self, session_id: str) -> None:
        if ended := self._live.pop(session_id, None):
            _, doing, since = ended
            self._spent[doing] = self._spent.get(doing, 0.0) + time.monotonic() - since

    def spent(self) -> dict[str, float]:
        """Seconds of all sessions so far, by what they were doing, those of live ones included."""
        now, spent = time.monotonic(), self._spent.copy()
        for _, doing, since in self._live.values():
            spent[doing] = spent.get(doing, 0.0) + now - since
        return spent

    def doing(self, session_id: str) -> str:
        return self._live.get(session_id, ("", "", 0.0))[1]

    def longest(self, count: int = 3) -> list[str]:
        """The sessions that have waited longest: "g000004.1 (guess/train/3): acting for 61 s"."""
        now = time.monotonic()
        oldest = sorted(self._live.items(), key=lambda item: item[1][2])[:count]
        return [f"{session} ({task}): {doing} for {now - since:.0f} s" for session, (task, doing, since) in oldest]


@dataclass(frozen=True, slots=True)
class Arena:
    client: Client
    speaker: Speaker | TextSpeaker
    chat: Chat | None
    """None with a TextSpeaker, which has no use for one."""
    limits: Limits
    max_turns: Mapping[str, int] = field(default_factory=dict)
    """By environment, where it differs from limits.max_turns."""
    activity: Activity = field(default_factory=Activity)

    def converse(self, session_id: str) -> Conversation:
        if isinstance(self.speaker, TextSpeaker):
            return InText(self.speaker, session_id=session_id)
        assert self.chat is not None, "a Speaker answers in tokens, which only a chat can read"
        return InTokens(self.chat, self.speaker, session_id=session_id)

    def limits_of(self, task: Task) -> Limits:
        return replace(self.limits, max_turns=self.max_turns.get(task.environment, self.limits.max_turns))


def limits_from(config: RunConfig, *, temperature: float | None = None) -> Limits:
    rollout = config.rollout
    return Limits(
        max_turns=rollout.max_turns,
        max_turn_tokens=rollout.max_turn_tokens,
        max_tokens=rollout.max_tokens,
        max_invalid=rollout.max_invalid,
        max_observation_chars=rollout.max_observation_chars,
        turn_timeout_s=rollout.turn_timeout_s,
        session_timeout_s=rollout.session_timeout_s,
        temperature=rollout.temperature if temperature is None else temperature,
    )
