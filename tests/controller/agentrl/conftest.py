from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from tests.controller.agentrl.peers import HERE, Plane, processes, until
from tests.ports import free_port

CONFIG = """
double-std: {module: authored.Double, parameters: {name: double-std, concurrency: 3}}
stream-std: {module: authored.Double, parameters: {name: stream-std, concurrency: 3}}
shelf: {module: authored.Shelf, parameters: {name: shelf, concurrency: 1}}
deaf: {module: authored.Deaf, parameters: {name: deaf, concurrency: 2}}
sleeper: {module: authored.Sleeper, parameters: {name: sleeper, concurrency: 1}}
polite: {module: authored.Polite, parameters: {name: polite, concurrency: 1}}
worded: {module: authored.Double, parameters: {name: worded, strings: true, concurrency: 2}}
many-env_train: {module: authored.Double, parameters: {name: many-env_train, num_tasks: 11000, concurrency: 4}}
victim: {module: authored.Double, parameters: {name: victim, concurrency: 2}}
"""
BY_STREAM = {"stream-std"}


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A controller with AgentRL's workers, each a process of its own as their command line starts
    it, one of them over gRPC."""
    folder = tmp_path_factory.mktemp("agentrl")
    config = folder / "tasks.yaml"
    config.write_text(CONFIG)
    with Plane() as plane:
        names = [line.partition(":")[0] for line in CONFIG.strip().splitlines()]
        lines = [f"{n} {config} {plane.grpc if n in BY_STREAM else plane.api} {free_port()}" for n in names]
        plane.folder = folder
        told = "".join(f"{line}\n" for line in lines)
        with processes(sys.executable, str(HERE / "host.py"), log=folder / "workers.log", told=told):
            yield plane


@pytest.fixture(scope="session")
def has(plane: Plane) -> Callable[[str], Plane]:
    """Waits until the worker of this name is here."""

    def has(name: str) -> Plane:
        here = plane.controller.roster.seats
        until(lambda: plane.worker(name) and plane.worker(name).id in here, what=f"worker {name}")
        return plane

    return has
