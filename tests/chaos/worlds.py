"""Worlds whose accounts can be checked. Promise: an answer lists everything said in the session;
each turn is noted when it is carried out.

What was said is kept in the session's memory (Plain), in a sandbox (Boxed), or in a sandbox of a
process of its own (Penned): a session
that goes on without its past is found out by its answers, a turn that is carried out twice by the
notes.
"""

import os
import subprocess
import time

from ludus.environments import Reply

TURNS = 4
LONGEST_TURN_S = 0.25
NAMES = ("plain", "boxed", "penned")


class Plain:
    """Keeps what was said in memory."""

    max_turns = TURNS
    tasks = {"train": [{"n": 0}], "test": [{"n": 1}]}

    def setup(self, task, rng):
        self.rng, self.num_said, self.said = rng, 0, ""
        return "begin"

    def act(self, text):
        time.sleep(self.rng.uniform(0, LONGEST_TURN_S))  # so that a kill may come in the middle
        hold()
        note(text)
        self.num_said += 1
        return Reply(self.add(text), reward=1 / TURNS, done=self.num_said == TURNS)

    def add(self, text):
        self.said += f"{text}\n"
        return self.said

    def solve(self):
        return "x"


class Boxed(Plain):
    """Keeps it in a sandbox, where something else runs all the while."""

    sandbox = os.environ.get("CHAOS_LEVEL", "namespace")

    def setup(self, task, rng):
        begun = super().setup(task, rng)
        self.shell = self.sandbox.shell()
        self.shell.run(f"sleep {marker()} > /dev/null 2>&1 &")
        return begun

    def add(self, text):
        run = self.shell.run if self.num_said % 2 else self.sandbox.run
        done = run(f"echo '{text}' >> said; cat said")
        if done.exit_code:
            raise RuntimeError(f"the sandbox answered {done}")
        return done.stdout


class Penned(Boxed):
    """The same, with a process to itself and a child that it never ends."""

    isolation = "process"

    def setup(self, task, rng):
        subprocess.Popen(["sleep", marker()])
        return super().setup(task, rng)


def marker() -> str:
    """How long everything sleeps: by that, whatever was left behind is found."""
    return os.environ.get("CHAOS_MARKER", "600")


def hold() -> None:
    """While this file is there, no turn ends, and who holds one says so: it is killed in the
    middle, however fast or slow anybody is."""
    path = os.environ.get("CHAOS_HOLD", "")
    if os.path.exists(path):
        append(f"{path}.by", str(os.getpid()))
        while os.path.exists(path):
            time.sleep(0.02)


def note(text: str) -> None:
    if path := os.environ.get("CHAOS_NOTES"):
        append(path, text)


def append(path: str, line: str) -> None:
    """One write to the end of the file: whole, also when this process is killed."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{line}\n".encode())
    os.close(file)
