"""What several files here play against."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def engine_server(model: Path, *, log: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`ludus serve engine` in a process of its own, as a user would start it, and its URL."""
    entry = "from ludus.cli.main import main; main()"
    command = [sys.executable, "-c", entry, "serve", "engine", str(model), "rollout.max_tokens=256", "--port=0"]
    with log.open("w") as told:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=told, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("Serving "), log.read_text()
        yield process, line.split(" at ")[1].strip()
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def engine_url(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with the small model."""
    with engine_server(small_model, log=tmp_path_factory.mktemp("engine") / "log") as (process, url):
        yield url
        process.terminate()
        process.wait(60)
