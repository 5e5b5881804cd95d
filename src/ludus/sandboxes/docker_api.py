"""The calls of Docker's HTTP API that sandboxes use; podman's service has the same."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpcore
import httpx

from ludus.errors import SandboxFailed

CALL_S = 60.0
_NOT_THERE = "no such "
_HEADER = struct.Struct(">B3xI")
_UPGRADE = {"Connection": "Upgrade", "Upgrade": "tcp"}


def sockets() -> list[Path]:
    """Sockets of container services: DOCKER_HOST, or else those that exist in the usual places."""
    given = os.environ.get("DOCKER_HOST", "")
    if given:
        return [Path(given.removeprefix("unix://"))] if given.startswith(("unix://", "/")) else []
    places = ["/var/run/docker.sock"]
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        places += [f"{runtime}/docker.sock", f"{runtime}/podman/podman.sock"]
    places.append("/run/podman/podman.sock")
    return [Path(place) for place in places if Path(place).is_socket()]


class DockerApi:
    """Safe to share between threads."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=8)  # one a shell
        transport = httpx.HTTPTransport(uds=str(socket), limits=unlimited)
        self._client = httpx.Client(transport=transport, base_url="http://docker", timeout=CALL_S)

    def version(self) -> str:
        answer = self._ask("GET", "/version")
        names = [part.get("Name", "") for part in answer.get("Components", [])]
        name = "podman" if any("odman" in each for each in names) else "Docker"
        return f"{name} {answer.get('Version', '?')}"

    def has_image(self, image: str) -> bool:
        return self._send("GET", f"/images/{image}/json").status_code == 200

    def create(self, name: str, body: Mapping[str, Any]) -> str:
        return str(self._ask("POST", "/containers/create", params={"name": name}, body=body)["Id"])

    def start(self, container: str) -> None:
        self._ask("POST", f"/containers/{container}/start")

    def kill(self, container: str, *, signal: str) -> None:
        self._ask("POST", f"/containers/{container}/kill", params={"signal": signal})

    def remove(self, container: str) -> None:
        """Idempotent: a container that is gone counts as removed."""
        self._ask("DELETE", f"/containers/{container}", params={"force": "1", "v": "1"}, ok=(404, 409))

    def containers(self, label: str) -> list[dict[str, Any]]:
        filters = json.dumps({"label": [label]})
        return list(self._ask("GET", "/containers/json", params={"all": "1", "filters": filters}))

    def exec(self, container: str, argv: list[str], *, user: str, folder: str) -> Exec:
        body = {
            "AttachStdin": True, "AttachStdout": True, "AttachStderr": True, "Tty": False,
            "Cmd": argv, "User": user, "WorkingDir": folder,
        }  # fmt: skip
        exec_id = str(self._ask("POST", f"/containers/{container}/exec", body=body)["Id"])
        begin = {"Detach": False, "Tty": False}
        response = self._send("POST", f"/exec/{exec_id}/start", json=begin, headers=_UPGRADE, stream=True)
        if response.status_code not in (101, 200):
            response.read()
            raise SandboxFailed(f"a command could not be started in the container: {_message(response)}")
        return Exec(self, exec_id, response)

    def exec_state(self, exec_id: str) -> dict[str, Any]:
        """Empty if it is gone with its container: Docker answers 404, podman may answer 500."""
        try:
            return dict(self._ask("GET", f"/exec/{exec_id}/json", ok=(404,)))
        except SandboxFailed as error:
            if _NOT_THERE in str(error).lower():
                return {}
            raise

    def close(self) -> None:
        self._client.close()

    def _ask(self, method: str, path: str, *, params: Any = None, body: Any = None, ok: tuple[int, ...] = ()) -> Any:
        response = self._send(method, path, params=params, json=body)
        if response.is_error and response.status_code not in ok:
            raise SandboxFailed(f"the container service refuses {method} {path.split('/')[1]}: {_message(response)}")
        return response.json() if response.content and "json" in response.headers.get("content-type", "") else {}

    def _send(self, method: str, path: str, *, stream: bool = False, **request: Any) -> httpx.Response:
        try:
            return self._client.send(self._client.build_request(method, path, **request), stream=stream)
        except httpx.HTTPError as error:
            raise SandboxFailed(f"the container service at {self.socket} does not answer: {error!r}") from error


class Exec:
    """A process in a container. A frame is a stream byte, three zeros, a length and the data."""

    def __init__(self, api: DockerApi, exec_id: str, response: httpx.Response) -> None:
        self._api, self.id, self._response = api, exec_id, response
        self._stream: httpcore.NetworkStream = response.extensions["network_stream"]
        self._buffer = bytearray()

    def send(self, data: bytes, *, timeout_s: float) -> None:
        try:
            self._stream.write(data, timeout=timeout_s)
        except httpcore.WriteTimeout:
            raise TimeoutError("the process does not read its input") from None
        except httpcore.WriteError as error:
            raise BrokenPipeError(str(error)) from None

    def unread(self, data: bytes) -> None:
        """Puts output back, for the next `receive`."""
        if data:
            self._buffer[:0] = _HEADER.pack(1, len(data)) + data

    def receive(self, timeout_s: float) -> tuple[int, bytes] | None:
        until_s = time.monotonic() + timeout_s
        while True:
            if frame := self._frame():
                return frame
            try:
                data = self._stream.read(65536, timeout=max(0.001, until_s - time.monotonic()))
            except httpcore.ReadTimeout:
                return None
            except httpcore.ReadError:
                data = b""
            if not data:
                return 0, b""
            self._buffer += data

    def _frame(self) -> tuple[int, bytes] | None:
        """The next frame, or the part of a large one that has arrived."""
        while len(self._buffer) >= _HEADER.size:
            stream, length = _HEADER.unpack_from(self._buffer)
            data = bytes(self._buffer[_HEADER.size : _HEADER.size + length])
            if length and not data:
                return None
            del self._buffer[: _HEADER.size + len(data)]
            if left := length - len(data):
                self._buffer[:0] = _HEADER.pack(stream, left)
            if data:
                return (2 if stream == 2 else 1), data
        return None

    def exit_code(self, timeout_s: float) -> int | None:
        until_s = time.monotonic() + timeout_s
        while True:
            state = self._api.exec_state(self.id)
            if not state.get("Running"):  # or the service no longer knows it
                code = state.get("ExitCode")
                return 137 if code is None else int(code)
            if time.monotonic() > until_s:
                return None
            time.sleep(0.005)

    def close(self) -> None:
        self._response.close()


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json().get("message", response.text))[:500].strip()
    except ValueError:
        return response.text[:500].strip()
