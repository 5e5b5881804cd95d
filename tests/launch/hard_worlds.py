"""Worlds that are hard on a process that plays sessions for another."""

import multiprocessing
import time
from dataclasses import replace
from types import MappingProxyType

from ludus.environments.fake import FakeEnvironment, FakeSession
from ludus.types import Tool


class Forking(FakeEnvironment):
    """Leaves a child behind that holds all of its descriptors, and that is waited for before its process ends."""

    def open(self, task, *, seed):
        multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)).start()
        return super().open(task, seed=seed)


class _Unpicklable(FakeSession):
    def start(self):
        return replace(
            super().start(), tools=(Tool("look", "Look.", MappingProxyType({"type": "object", "properties": {}})),)
        )


class Unpicklable(FakeEnvironment):
    """Says what cannot be sent."""

    def open(self, task, *, seed):
        return _Unpicklable(self, task, seed=seed)
