"""One session to its end. Promise: whatever the environment or the model does, a trajectory comes back, and its stop says why it ended.

This is the one place where a failed session becomes data: borders name the failure, `play` records it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from ludus.controller.client.client import ClientSession
from ludus.errors import EngineFailed, EnvironmentFailed, LudusError, TurnTimeout, describe
from ludus.rollout.arena import Arena
from ludus.rollout.conversation import Spoken
from ludus.seeds import derive
from ludus.types import Action, Message, Observation, Sampling, Stop, Task, Trajectory, Turn

CLOSE_TIMEOUT_S = 5.0
GENERATING = "generating"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Attempt:
    """Which session: its id, its task, its place in the group, and the seed of all its noise."""

    session_id: str
    task: Task
    seed: int
    index: int = 0


async def play(attempt: Attempt, *, arena: Arena) -> Trajectory:
    """Plays `attempt` and returns its trajectory; raises only when cancelled, or when the fault is ours."""
    return await _Play(attempt, arena).run()


class _Ended(Exception):
    def __init__(self, stop: Stop) -> None:
        self.stop = stop


class _Play:
    """A trajectory in the making."""

    def __init__(self, attempt: Attempt, arena: Arena) -> None:
        self.attempt, self.arena = attempt, arena
        self.limits = arena.limits_of(attempt.task)
        self.conversation = arena.converse(attempt.session_id)
        self.start = Observation()
        self.turns: list[Turn] = []

    async def run(self) -> Trajectory:
        began = time.monotonic()
        try:
            stop, failure = await self._until_ended()
        finally:
            self.arena.activity.forget(self.attempt.session_id)
            await self.arena.speaker.release(self.attempt.session_id)
        return Trajectory(
            id=self.attempt.session_id,
            task=self.attempt.task,
            attempt=self.attempt.index,
            seed=self.attempt.seed,
            start=self.start,
            turns=tuple(self.turns),
            sequences=self.conversation.sequences(),
            stop=stop,
            failure=failure,
            max_turns=self.limits.max_turns,
            seconds=time.monotonic() - began,
        )

    async def _until_ended(self) -> tuple[Stop, str]:
        session: ClientSession | None = None
        clock = asyncio.timeout(None)
        try:
            async with clock:
                session = await self._open()
                # only now: waiting for a free slot is the world's time, not this session's
                clock.reschedule(asyncio.get_running_loop().time() + self.limits.session_timeout_s)
                await self._converse(session)
        except _Ended as ended:
            return ended.stop, ""
        except TurnTimeout as error:
            return Stop.TURN_TIMEOUT, describe(error)
        except TimeoutError:
            if not clock.expired():  # not a limit of this session: somebody's bug
                raise
            return Stop.SESSION_TIMEOUT, self._out_of_time()
        except LudusError as error:
            return Stop.FAILED, describe(error)
        finally:
            if session is not None:
                await _close(session)
        return Stop.DONE, ""

    async def _open(self) -> ClientSession:
        self._note("opening")
        attempt, limit_s = self.attempt, self.limits.turn_timeout_s
        return await self.arena.client.open(attempt.task, seed=attempt.seed, timeout_s=limit_s)

    async def _converse(self, session: ClientSession) -> None:
        """Turns until the environment is done; raises _Ended where something else ends the session."""
        self.start = self._cut(await self._in_turn_time(session.start(), "starting"))
        if self.start.done:
            return
        self.conversation.start(self.start.messages, self.start.tools or ())
        for index in range(self.limits.max_turns):
            observation = await self._turn(index, session)
            if observation.done:
                return
            if sum(turn.observation.invalid for turn in self.turns) > self.limits.max_invalid:
                raise _Ended(Stop.INVALID)
            if index + 1 < self.limits.max_turns:  # the last observation prompts nobody: it is no part of a sequence
                self.conversation.observe(observation.messages, observation.tools)
        raise _Ended(Stop.MAX_TURNS)

    async def _turn(self, index: int, session: ClientSession) -> Observation:
        began = time.monotonic()
        spoken = await self._speak(index, session)
        generated = time.monotonic()
        turn = partial(
            Turn,
            index=index,
            action=spoken.action,
            policy=spoken.policy,
            version=spoken.version,
            num_prompt_tokens=spoken.num_prompt_tokens,
            num_tokens=spoken.num_tokens,
            generate_s=generated - began,
        )
        # before acting: a failure of the environment must not lose what was sampled
        self.turns.append(turn(observation=Observation()))
        if not spoken.complete:
            full = spoken.num_prompt_tokens + spoken.num_tokens >= self.limits.max_tokens
            raise _Ended(Stop.MAX_TOKENS if full else Stop.MAX_TURN_TOKENS)
        observation = self._cut(await self._react(session, spoken.action))
        self.turns[-1] = turn(observation=observation, act_s=time.monotonic() - generated)
        return observation

    async def _speak(self, index: int, session: ClientSession) -> Spoken:
        room = self.limits.max_tokens - self.conversation.num_prompt_tokens
        if room <= 0:
            raise _Ended(Stop.MAX_TOKENS)
        sampling = Sampling(
            max_tokens=min(self.limits.max_turn_tokens, room),
            temperature=self.limits.temperature,
            seed=derive(self.attempt.seed, "turn", index),
        )
        self._note(GENERATING)
        return await self.conversation.speak(turn=index, sampling=sampling, session=session)

    async def _react(self, session: ClientSession, action: Action) -> Observation:
        if action.problem:  # the model hears what was wrong with its call; the environment never sees it
            return Observation(messages=(Message("tool", action.problem),), invalid=True)
        return await self._in_turn_time(session.act(action), "acting")

    async def _in_turn_time(self, call: Awaitable[T], doing: str) -> T:
        self._note(doing)
        limit_s = self.limits.turn_timeout_s
        clock = asyncio.timeout(limit_s)
        try:
            async with clock:
                return await call
        except TimeoutError:
            if not clock.expired():  # the session's clock, not the turn's
                raise
            raise TurnTimeout(f"{doing} exceeded {limit_s:g} s") from None

    def _out_of_time(self) -> str:
        doing = self.arena.activity.doing(self.attempt.session_id)
        border = EngineFailed if doing == GENERATING else EnvironmentFailed
        return f"{border.__name__}: the session exceeded {self.limits.session_timeout_s:g} s while {doing}"

    def _note(self, doing: str) -> None:
        self.arena.activity.note(self.attempt.session_id, self.attempt.task, doing)

    def _cut(self, observation: Observation) -> Observation:
        """A megabyte of text would fill every context: it is cut, and the model is told."""
        most = self.limits.max_observation_chars
        if all(len(message.content) <= most for message in observation.messages):
            return observation
        messages = tuple(_shorten(message, most) for message in observation.messages)
        return replace(observation, messages=messages, metrics={**observation.metrics, "cut": 1.0})


def _shorten(message: Message, most: int) -> Message:
    extra = len(message.content) - most
    return (
        replace(message, content=f"{message.content[:most]}\n[{extra} more characters cut]") if extra > 0 else message
    )


async def _close(session: ClientSession) -> None:
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await session.close()
    except (TimeoutError, LudusError):
        return  # the trajectory stands; what a worker cannot close, its lease frees
