from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.controller.agentrl.peers import HERE, Plane, free_port, process, until, worker_command

CONFIG = """
double-std: {module: authored.Double, parameters: {name: double-std, concurrency: 3}}
stream-std: {module: authored.Double, parameters: {name: stream-std, concurrency: 3}}
"""
HOSTED = ("shelf", "deaf", "sleeper", "polite", "many-env_train", "worded")


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A controller with AgentRL's workers: two of them as their command line starts them, over HTTP and gRPC, the others in one process."""
    folder = tmp_path_factory.mktemp("agentrl")
    config = folder / "tasks.yaml"
    config.write_text(CONFIG)
    with Plane() as plane, ExitStack() as stack:
        hosted = [f"{name}={free_port()}" for name in HOSTED]
        for log, command in {
            "http": worker_command("double-std", controller=plane.api, config=config),
            "grpc": worker_command("stream-std", controller=plane.grpc, config=config),
            "host": [sys.executable, str(HERE / "host.py"), plane.api, *hosted],
        }.items():
            stack.enter_context(process(*command, log=folder / f"{log}.log"))
        plane.folder = folder
        yield plane


@pytest.fixture
def has(plane: Plane):
    """Waits until the worker of this name is here."""

    def has(name: str) -> Plane:
        until(
            lambda: plane.worker(name) and plane.worker(name).id in plane.controller.roster.seats, what=f"worker {name}"
        )
        return plane

    return has
