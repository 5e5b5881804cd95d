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


@pytest.mark.parametrize("what", [["controller"], ["worker", "guess"], ["engine", "a-model"]])
def test_a_port_that_is_taken_is_named(what):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = ludus("serve", *what, "--port", str(taken.getsockname()[1]), LUDUS_TOKEN="")
    assert result.returncode == 1
    assert "cannot listen on 127.0.0.1" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_beyond_loopback_the_controller_wants_tokens():
    result = ludus("serve", "controller", "--host", "0.0.0.0", "--port", "0", LUDUS_TOKEN="")
    assert result.returncode == 1
    assert "--tokens FILE" in result.stderr


def test_beyond_loopback_a_model_is_served_only_to_those_with_a_key():
    result = ludus("serve", "engine", "a-model", "--host", "0.0.0.0", "--port", "0", LUDUS_API_KEY="")
    assert result.returncode == 1
    assert "set LUDUS_API_KEY" in result.stderr


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rollout.temperature=0.5", "rollout.temperature does not apply to serving a model"),
        ("trainer.lr=1", "trainer.lr does not apply"),
        ("engine.max_runing=3", "unknown key 'engine.max_runing'. Did you mean 'max_running'?"),
    ],
)
def test_a_key_that_serving_a_model_does_not_read_is_refused(override, message):
    result = ludus("serve", "engine", "a-model", override)
    assert result.returncode == 1
    assert message in result.stderr


def test_a_controllers_url_with_a_password_is_refused_and_not_repeated():
    result = ludus("serve", "worker", "guess", "--controller", "http://me:secret@127.0.0.1:7100")
    assert result.returncode == 1
    assert "holds a password" in result.stderr
    assert "secret" not in result.stderr
