"""Environments whose act never returns."""

import time


class BusyThread:
    """Computes on its thread."""

    tasks = {"train": [{"n": 0}], "test": [{"n": 1}]}

    def setup(self, task, rng):
        return "go"

    def act(self, text):
        while True:
            pass


class BusyLoop(BusyThread):
    """Computes on the event loop."""

    async def act(self, text):
        while True:
            pass


class SleepyLoop(BusyThread):
    """Sleeps on the event loop, in a system call."""

    async def act(self, text):
        time.sleep(3600)
