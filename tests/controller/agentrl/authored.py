"""Environments as AgentRL's authors write them, run by the unmodified worker package. Not imported
by our tests: `peers.py` starts them.
"""

from __future__ import annotations

import json
import os
import signal
import time

from agentrl.worker.task import Session, Task
from agentrl.worker.typings import (
    AgentCancelledException,
    RewardHistoryItem,
    SampleStatus,
    TaskSampleExecutionResult,
)

PUT = {
    "type": "function",
    "function": {
        "name": "put",
        "description": "Put it on a shelf.",
        "parameters": {"type": "object", "properties": {"shelf": {"type": "string"}}, "required": ["shelf"]},
    },
}


class Double(Task):
    """Text. The number is the index; the right answer is twice as much. Like ALFWorld's class, it
    never forgets an early bad turn.
    """

    def __init__(self, num_tasks: int = 5, rounds: int = 4, strings: bool = False, **settings) -> None:
        super().__init__(**settings)
        self.num_tasks, self.rounds, self.strings = num_tasks, rounds, strings

    def get_indices(self) -> list:
        numbers = list(range(self.num_tasks))
        return [f"n{n}" for n in numbers] if self.strings else [*numbers, -1]

    async def start_sample(self, index, session: Session) -> TaskSampleExecutionResult:
        return await self.play(int(str(index).lstrip("n")), session)

    async def start_sample_custom(self, task: dict, session: Session) -> TaskSampleExecutionResult:
        return await self.play(task["number"], session)

    async def play(self, number: int, session: Session) -> TaskSampleExecutionResult:
        status = SampleStatus.COMPLETED
        session.inject({"role": "system", "content": "double the number"})
        said = {"role": "user", "content": f"number {number}"}
        try:
            for _ in range(self.rounds):
                heard = (await session.action(said)).messages[-1]
                text = heard.get("content") or ""
                if text == str(2 * number):
                    session.inject({"role": "user", "content": "right"})
                    session.inject(RewardHistoryItem(reward=1, metrics={"score": 0.5, "trace": ["any", "thing"]}))
                    return TaskSampleExecutionResult(status=status)
                if not text.strip().isdigit():
                    status = SampleStatus.AGENT_VALIDATION_FAILED
                if text == "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                if text == "fail":
                    raise RuntimeError("the class fails")
                told = {key: value for key, value in heard.items() if key != "role"}
                session.inject(RewardHistoryItem(reward=0.1))
                said = {"role": "user", "content": f"wrong: {json.dumps(told)}", "mood": "sad"}
        except AgentCancelledException:
            return TaskSampleExecutionResult(status=SampleStatus.CANCELLED)
        session.inject({"role": "user", "content": "out of turns"})
        session.inject(RewardHistoryItem(reward=0))
        return TaskSampleExecutionResult(status=SampleStatus.TASK_LIMIT_REACHED)


class Shelf(Task):
    """Tools, blocking code on a thread, and the whole history again every turn. Cancelling is not
    its business: it knows nothing of it.
    """

    def __init__(self, num_tasks: int = 3, **settings) -> None:
        super().__init__(tools=[PUT], **settings)
        self.num_tasks = num_tasks

    def get_indices(self) -> list:
        return list(range(self.num_tasks))

    def sync_start_sample(self, index, session: Session) -> TaskSampleExecutionResult:
        session.set_full_history()
        session.inject({"role": "system", "content": "tidy up"})
        said = {"role": "user", "content": f"shelf {index}, please"}
        while True:
            call = session.sync_action(said).messages[-1]["tool_calls"][0]
            shelf = json.loads(call["function"]["arguments"])["shelf"]
            said = {"role": "tool", "tool_call_id": call["id"], "content": f"it is on {shelf} now"}
            if shelf == str(index):
                session.inject(said)
                session.inject(RewardHistoryItem(reward=1))
                return TaskSampleExecutionResult(status=SampleStatus.COMPLETED)


class Deaf(Task):
    """Takes any answer, never ends by itself, and does not handle being cancelled: what cancels it
    occupies its slot for ever.
    """

    def get_indices(self) -> list:
        return [0]

    async def start_sample(self, index, session: Session) -> TaskSampleExecutionResult:
        while True:
            await session.action({"role": "user", "content": "go on"})


class Sleeper(Task):
    """Holds a thread for a while on its first turn."""

    def get_indices(self) -> list:
        return [0]

    def sync_start_sample(self, index, session: Session) -> TaskSampleExecutionResult:
        session.sync_action({"role": "user", "content": "say for how long"})
        time.sleep(1.8)
        session.sync_action({"role": "user", "content": "that was long"})
        return TaskSampleExecutionResult(status=SampleStatus.COMPLETED)


class Polite(Task):
    """Takes any answer and never ends by itself, but handles being cancelled."""

    def get_indices(self) -> list:
        return [0]

    async def start_sample(self, index, session: Session) -> TaskSampleExecutionResult:
        try:
            while True:
                await session.action({"role": "user", "content": "go on"})
        except AgentCancelledException:
            return TaskSampleExecutionResult(status=SampleStatus.CANCELLED)
