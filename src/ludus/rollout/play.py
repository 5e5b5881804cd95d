"""One session to its end. Promise: a trajectory comes back, and its stop says why it ended.

This is the one place where a failed session becomes data: borders name it, `play` records it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import replace
from typing import TypeVar

from ludus.controller.client.client import ClientSession
from ludus.engines.engine import Answer
from ludus.errors import EngineFailed, EnvironmentFailed, LudusError, TurnTimeout, describe
from ludus.rollout.context import RolloutContext
from ludus.rollout.conversation import Conversation
from ludus.rollout.cross_policy import policy_for
from ludus.seeds import derive
from ludus.types import Action, Completion, Message, Observation, Order, Sampling, Stop, Trajectory, Turn

CLOSE_TIMEOUT_S = 5.0
GENERATING = "generating"
T = TypeVar("T")


async def play(order: Order, *, attempt: int = 0, retry: int = 0, context: RolloutContext) -> Trajectory:
    """Plays one session of `order`; raises only when cancelled, or when the fault is ours."""
    return await _Play(order, context, attempt=attempt, retry=retry).run()


def session_of(order: Order, *, attempt: int, retry: int) -> tuple[str, int]:
    """The id of a session, and the seed of all its noise."""
    again = f"r{retry}" if retry else ""
    if order.attempts is None:
        return order.id + again, derive(*order.seed, *([retry] if retry else []))
    return f"{order.id}.{attempt}{again}", derive(*order.seed, attempt, retry)


class _Play:
    """A trajectory in the making."""

    def __init__(self, order: Order, context: RolloutContext, *, attempt: int, retry: int) -> None:
        self.order, self.context, self.limits, self.attempt = order, context, context.limits, attempt
        self.id, self.seed = session_of(order, attempt=attempt, retry=retry)
        self.max_turns = context.max_turns_of(order)
        self.conversation = Conversation(context.chat)
        self.start = Observation()
        self.turns: list[Turn] = []

    async def run(self) -> Trajectory:
        began = time.monotonic()
        try:
            stop, failure = await self._until_ended()
        finally:
            self.context.activity.forget(self.id)
            await self.context.sampler.release(self.id)
        return Trajectory(
            id=self.id,
            task=self.order.task,
            attempt=self.attempt,
            seed=self.seed,
            start=self.start,
            turns=tuple(self.turns),
            sequences=self.conversation.sequences(),
            stop=stop,
            failure=failure,
            max_turns=self.max_turns,
            seconds=time.monotonic() - began,
        )

    async def _until_ended(self) -> tuple[Stop, str]:
        session: ClientSession | None = None
        clock = asyncio.timeout(None)
        try:
            async with clock:
                self._note("opening")
                limit_s = self.limits.turn_timeout_s
                session = await self.context.client.open(self.order.task, seed=self.seed, timeout_s=limit_s)
                # only now: waiting for a free slot is not this session's time
                clock.reschedule(asyncio.get_running_loop().time() + self.limits.session_timeout_s)
                return await self._converse(session), ""
        except TurnTimeout as error:
            return Stop.TURN_TIMEOUT, describe(error)
        except TimeoutError:
            if not clock.expired():  # not a limit of this session: a bug somewhere
                raise
            return Stop.SESSION_TIMEOUT, self._out_of_time()
        except LudusError as error:
            return Stop.FAILED, describe(error)
        finally:
            if session is not None:
                await _close(session)

    async def _converse(self, session: ClientSession) -> Stop:
        self.start = self._cut(await self._in_turn_time(session.start(), "starting"))
        if self.start.done:
            return Stop.DONE
        self.conversation.start(self.start.messages, self.start.tools or ())
        for index in range(self.max_turns):
            if stop := await self._turn(index, session):
                return stop
            if index + 1 < self.max_turns:  # the last observation prompts no turn
                observation = self.turns[-1].observation
                self.conversation.observe(observation.messages, observation.tools)
        return Stop.MAX_TURNS

    async def _turn(self, index: int, session: ClientSession) -> Stop | None:
        """Samples and acts; returns a stop where the session ends with this turn."""
        began = time.monotonic()
        free = self.limits.max_tokens - self.conversation.num_prompt_tokens
        if free <= 0:
            return Stop.MAX_TOKENS
        said = await self._sample(index, session, max_tokens=min(self.limits.max_turn_tokens, free))
        generated = time.monotonic()
        turn = replace(self.conversation.add(said, turn=index), generate_s=generated - began)
        # before acting: a failure of the environment must not lose what was sampled
        self.turns.append(turn)
        if said.stop != "end":
            full = turn.num_prompt_tokens + turn.num_tokens >= self.limits.max_tokens
            return Stop.MAX_TOKENS if full else Stop.MAX_TURN_TOKENS
        observation = self._cut(await self._react(session, turn.action))
        self.turns[-1] = replace(turn, observation=observation, act_s=time.monotonic() - generated)
        if observation.done:
            return Stop.DONE
        invalid = sum(turn.observation.invalid for turn in self.turns)
        return Stop.INVALID if invalid > self.limits.max_invalid else None

    async def _sample(self, index: int, session: ClientSession, *, max_tokens: int) -> Completion | Answer:
        order, context = self.order, self.context
        seed = derive(self.seed, "turn", index)
        sampling = Sampling(
            max_tokens=max_tokens,
            temperature=self.limits.temperature if order.temperature is None else order.temperature,
            stop_ids=context.chat.stop_ids if context.chat else (),
            seed=seed,
        )
        policy = policy_for(order, draw=context.draw, run_seed=context.seed, session_id=self.id, turn_seed=seed)
        self._note(GENERATING)
        prompt = self.conversation.prompt()
        return await context.sampler.sample(
            prompt, sampling=sampling, session_id=self.id, policy=policy, session=session
        )

    async def _react(self, session: ClientSession, action: Action) -> Observation:
        if action.problem:  # for the model; the environment never sees it
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
        doing = self.context.activity.doing(self.id)
        border = EngineFailed if doing == GENERATING else EnvironmentFailed
        return f"{border.__name__}: the session exceeded {self.limits.session_timeout_s:g} s while {doing}"

    def _note(self, doing: str) -> None:
        self.context.activity.note(self.id, doing, task_id=self.order.task.id)

    def _cut(self, observation: Observation) -> Observation:
        """Cuts long text, which would fill the model's context, and says so in the message."""
        most = self.limits.max_observation_chars
        if all(len(message.content) <= most for message in observation.messages):
            return observation
        messages = tuple(
            replace(each, content=f"{each.content[:most]}\n[{extra} more characters cut]") if extra > 0 else each
            for each in observation.messages
            for extra in [len(each.content) - most]
        )
        return replace(observation, messages=messages, metrics={**observation.metrics, "cut": 1.0})


async def _close(session: ClientSession) -> None:
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await session.close()
    except (TimeoutError, LudusError):
        return  # the trajectory stands; a session that cannot be closed ends with its lease
