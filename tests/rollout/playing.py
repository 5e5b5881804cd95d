"""Rollout contexts for tests: a real chat and a real client around a FakeEngine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ludus.config import RolloutConfig
from ludus.controller.client.local import LocalClient
from ludus.engines.fake import FakeEngine
from ludus.environments.environment import Environment
from ludus.environments.fake import FakeEnvironment
from ludus.rollout.context import RolloutContext
from ludus.rollout.sampler import PolicySampler
from ludus.types import Action, Task, ToolCall
from tests.rollout.families import chat_of

CHAT = chat_of("tiny")
LIMITS = {
    "max_turns": 8,
    "max_turn_tokens": 64,
    "max_tokens": 2000,
    "max_invalid": 3,
    "max_observation_chars": 8000,
    "turn_timeout_s": 120.0,
    "session_timeout_s": 120.0,
    "temperature": 1.0,
}


class WatchedEnvironment(FakeEnvironment):
    """Remembers its sessions and the seeds they were opened with."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"blocking": False, **options})
        self.sessions: list[Any] = []
        self.seeds: list[int] = []

    def open(self, task: Task, *, seed: int) -> Any:
        self.seeds.append(seed)
        session = super().open(task, seed=seed)
        self.sessions.append(getattr(session, "session", session))
        return session

    @property
    def num_open(self) -> int:
        return sum(session.num_closed == 0 for session in self.sessions)


def make_context(environment: Environment, engine: FakeEngine, **limits: float) -> RolloutContext:
    chosen = RolloutConfig.model_validate({**LIMITS, **limits})
    return RolloutContext(LocalClient([environment]), PolicySampler(engine), CHAT, chosen)


def say(text: str) -> list[int]:
    return CHAT.encode_action(Action(text))


def call(name: str, **arguments: Any) -> list[int]:
    return CHAT.encode_action(Action(tool_calls=(ToolCall(name, arguments),)))


def says(*texts: str) -> list[list[int]]:
    return [say(text) for text in texts]


def words_of(task: Task) -> Sequence[str]:
    words: Sequence[str] = task.data["words"]
    return words
