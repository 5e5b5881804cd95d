"""Operating-system tasks in a sandbox: answer a question or change the system, with bash.

Problems are generated (families.py), or AgentBench's own (`items`, see agentbench.py). One answer,
or one claim to be finished, ends the session: 1 if it is right, else 0. Nothing that the agent
started can see or touch the process that grades.
"""

from __future__ import annotations

import random
from typing import Annotated, Any

from pydantic import Field

from ludus.environments import Reply, tool
from ludus.errors import EnvironmentFailed
from ludus.sandboxes.sandbox import Finished, Limits
from ludus.types import ToolCall
from ludus.worlds.drawing import NUM_DEV, draw_tasks
from ludus.worlds.shell import agentbench
from ludus.worlds.shell.families import PROBLEMS
from ludus.worlds.shell.problems import BASH

MAX_CHARS = 800
CUT_CHARS = 780
_PREPARE = Limits(time_s=20)
_GUESSES = ("ls", "ls -R", "cat *", "pwd", "wc -l *", "find . -type f | sort", "chmod 755 *", "sort -u *", "rm -f *")


class Shell:
    """You are at a bash prompt, in the folder /work. Do what is asked. Call bash_action as often as you need to.

    Then end with answer_action if a question was asked, or with finish_action if something was to be done. You have one try.
    """

    sandbox: Any = "namespace"
    capabilities = ("tool use", "reasoning", "planning")
    max_turns = 8

    def __init__(self, *, items: str = "", command_s: Annotated[float, Field(gt=0, le=300)] = 8.0) -> None:
        """items: AgentBench's folder data/os_interaction, or a JSON file of items; command_s: time
        limit of a command."""
        self.items, self.command_s = items, command_s

    def tasks(self, split: str) -> list[dict[str, Any]]:
        if self.items:
            return agentbench.load(self.items, split=split)
        return draw_tasks(lambda rng: rng.choice(PROBLEMS)(rng).plain(), split=split, seed="shell", num_dev=NUM_DEV)

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        self.task, self.solved, self.seen = task, False, ""
        self.shell = self.sandbox.shell()
        if task["init"]:
            self._prepared(self.sandbox.run([*BASH, task["init"]], limits=_PREPARE), what="init")
        if task["start"]:
            self._prepared(self.shell.run(task["start"], limits=_PREPARE), what="start")
        return str(task["description"])

    @tool
    def bash_action(self, script: str) -> Reply:
        """Run a bash script and see what it prints. Folder and variables stay for the next one.

        script: what to run; it gets no input, and is stopped when it takes too long"""
        done = self.shell.run(script, limits=Limits(time_s=self.command_s))
        self.seen = done.stdout
        return Reply(shown(done, limit_s=self.command_s))

    @tool
    def finish_action(self, thought: str) -> Reply:
        """Say that what was asked for is done. This ends the session.

        thought: why it is done; it is not graded"""
        return self._graded("")

    @tool
    def answer_action(self, answer: str) -> Reply:
        """Answer the question. This ends the session.

        answer: the answer and nothing else"""
        return self._graded(answer)

    def solve(self) -> ToolCall:
        if not self.solved:
            self.solved = True
            return ToolCall("bash_action", {"script": self.task["gold"]})
        if self._asks():
            return ToolCall("answer_action", {"answer": self.seen.strip()})
        return ToolCall("finish_action", {"thought": "done"})

    def random_action(self, rng: random.Random) -> ToolCall:
        ending = {"answer_action": {"answer": str(rng.randrange(20))}, "finish_action": {"thought": ""}}
        if rng.random() < 0.2:
            name = rng.choice(sorted(ending))
            return ToolCall(name, ending[name])
        return ToolCall("bash_action", {"script": rng.choice(_GUESSES)})

    def _graded(self, answer: str) -> Reply:
        right = self._is_right(answer)
        return Reply("right" if right else "wrong", reward=float(right), done=True, metrics={"success": float(right)})

    def _asks(self) -> bool:
        evaluation = self.task.get("evaluation")
        return agentbench.asks(evaluation) if evaluation else bool(self.task["answer"])

    def _is_right(self, answer: str) -> bool:
        if len(answer) > agentbench.MAX_ANSWER_CHARS:
            return False
        if "evaluation" in self.task:
            return agentbench.is_right(self.task["evaluation"], answer=answer, sandbox=self.sandbox)
        if self.task["answer"]:
            return answer.strip() == str(self.task["answer"])
        graded: Finished = self.sandbox.run([*BASH, self.task["check"]], limits=_PREPARE)
        return graded.ok

    def _prepared(self, done: Finished, *, what: str) -> None:
        if not done.ok:
            said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
            ended = f"the {what} script ended with {done.exit_code} and said {said[:200]!r}"
            raise EnvironmentFailed(f"{ended}; it may need another sandbox or more rights")


def shown(done: Finished, *, limit_s: float) -> str:
    """A command's output as the agent sees it: at most MAX_CHARS and a notice."""
    text = (done.stdout + done.stderr).strip("\n")
    if len(text) > MAX_CHARS or done.truncated:
        text = f"{text[:CUT_CHARS]}\n[cut: the output is longer]"
    notes = [f"[stopped after {limit_s:g} s]"] * done.timed_out
    notes += [f"[exit code {done.exit_code}]"] * (done.exit_code != 0 and not done.timed_out)
    notes += ["[the shell ended; a new one begins in /work]"] * done.restarted
    return "\n".join([*([text] if text else []), *notes]) or "[no output]"
