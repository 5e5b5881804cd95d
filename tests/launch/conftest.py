"""What several files here play against."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def engine_url(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`ludus serve engine` with the small model, in a process of its own, as a user would start it."""
    entry = "from ludus.cli.main import main; main()"
    command = [sys.executable, "-c", entry, "serve", "engine", str(small_model), "rollout.max_tokens=256", "--port=0"]
    log = tmp_path_factory.mktemp("engine") / "log"
    with log.open("w") as told:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=told, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("Serving "), log.read_text()
        yield line.split(" at ")[1].strip()
        process.terminate()
        process.wait(60)
    finally:
        process.kill()
        process.communicate()
