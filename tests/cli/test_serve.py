import json
import os
import signal
import socket
import subprocess
import sys

import httpx
import pytest

from tests.cli.test_main import ludus


@pytest.fixture
def started():
    processes = []

    def start(*arguments):
        command = [sys.executable, "-c", "from ludus.cli.main import main; main()", "serve", "controller", *arguments]
        env = {**os.environ, "LUDUS_TOKEN": ""}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_the_controller_says_where_it_listens_serves_and_stops_on_sigterm(started, tmp_path):
    process = started("--port", "0", "--state", str(tmp_path / "state"))
    line = process.stdout.readline()
    assert line.startswith("ludus controller ready at http://127.0.0.1:")
    assert httpx.get(line.split()[-1] + "/health", timeout=60).json()["status"] == "ok"
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0
    events = [json.loads(each)["event"] for each in stderr.splitlines()]
    assert events[0] == "controller started"
    assert events[-1] == "controller stopped"
    assert (tmp_path / "state" / "controller.sqlite3").exists()


def test_a_port_that_is_taken_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = ludus("serve", "controller", "--port", str(taken.getsockname()[1]), LUDUS_TOKEN="")
    assert result.returncode == 1
    assert "cannot listen on 127.0.0.1" in result.stderr.splitlines()[-1]


def test_beyond_loopback_the_controller_wants_tokens():
    result = ludus("serve", "controller", "--host", "0.0.0.0", "--port", "0", LUDUS_TOKEN="")
    assert result.returncode == 1
    assert "--tokens FILE" in result.stderr
