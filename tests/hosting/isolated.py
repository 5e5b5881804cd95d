"""Environments that ask for a process of their own, and misbehave in it; and whether a process
lives.
"""

import os
import subprocess
import time
from pathlib import Path

from ludus.environments import Reply


class Isolated:
    """Says where it is; obeys orders."""

    max_turns = 20
    isolation = "process"
    tasks = {"train": [{"n": n} for n in range(4)], "test": [{"n": 9}]}
    kept = []

    def setup(self, task, rng):
        return f"{os.getpid()}"

    def act(self, text):
        order, _, amount = text.partition(" ")
        if order == "loop":
            while True:
                pass
        if order == "sleep":
            time.sleep(float(amount))
        if order == "exit":
            os._exit(int(amount))
        if order == "leave":
            raise SystemExit("as ordered")
        if order == "hold":
            self.kept.append(b"x" * int(float(amount) * 2**20))
        if order == "start":
            return str(subprocess.Popen(["sleep", "600"]).pid)
        if order == "say":
            return "a" * int(amount)
        return Reply(f"{os.getpid()}", reward=0.5, done=order == "end", metrics={"turns": 1})

    def solve(self):
        return "end"

    def random_action(self, rng):
        return f"say {rng.randrange(100)}"


class AsyncIsolated(Isolated):
    """The same, on its loop."""

    async def act(self, text):
        return Isolated.act(self, text)


class Unmade(Isolated):
    """Cannot be made in another process: its file is not what it was."""

    def __init__(self, *, only_in: int = 0) -> None:
        if only_in and only_in != os.getpid():
            os._exit(7)


def alive(pid):
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def ends(pid, *, patience_s=60.0):
    deadline = time.monotonic() + patience_s
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)
