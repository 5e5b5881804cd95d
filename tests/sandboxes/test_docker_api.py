"""What the container service says of a command whose container is gone."""

from __future__ import annotations

import socket
import threading

import pytest

from ludus.errors import SandboxFailed
from ludus.sandboxes.docker_api import DockerApi


@pytest.fixture
def service(tmp_path):
    """A service on a unix socket that gives the answer that a test sets, once per connection."""
    answers: list[tuple[int, str]] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "service.sock"))
    listener.listen()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                status, body = answers[-1]
                head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nConnection: close\r\n"
                connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())

    thread = threading.Thread(target=serve)
    thread.start()
    yield tmp_path / "service.sock", answers
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        (404, '{"message": "no such exec instance: abc"}'),
        (
            500,
            '{"message": "retrieving exec session abc from container 1: container 1 does not exist: no such container"}',
        ),
    ],
    ids=["docker", "podman"],
)
def test_a_command_whose_container_went_is_gone_not_a_failure_of_the_service(service, answer):
    path, answers = service
    answers.append(answer)
    api = DockerApi(path)
    assert not api.exec_state("abc").get("Running")
    api.close()


def test_any_other_failure_of_the_service_is_told(service):
    path, answers = service
    answers.append((500, '{"message": "disk full"}'))
    api = DockerApi(path)
    with pytest.raises(SandboxFailed, match="disk full"):
        api.exec_state("abc")
    api.close()
