"""A fake sandbox for tests of environments: files in a dict, scripted answers."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import replace

from ludus.errors import SandboxFailed
from ludus.sandboxes.sandbox import (
    MAX_FILE_BYTES,
    Command,
    Finished,
    Kind,
    Limits,
    Need,
    Sandbox,
    checked_path,
    encoded,
    kind_of,
    refusal,
)


class FakeSandbox:
    """`answers` maps commands to results; others succeed without output. `commands` records all."""

    kind: Kind = "process"

    def __init__(self, *, answers: Mapping[str, Finished | str] | None = None, dies_after: int | None = None) -> None:
        """dies_after: number of commands after which the sandbox is gone."""
        self.answers = dict(answers or {})
        self.dies_after = dies_after
        self.commands: list[str] = []
        self.files: dict[str, bytes] = {}
        self.num_closed = 0

    def start(self) -> None:
        pass

    def run(self, command: Command, *, limits: Limits = Limits()) -> Finished:
        if refused := refusal(command):
            return refused
        self._require_open()
        text = command if isinstance(command, str) else " ".join(command)
        if self.dies_after is not None and len(self.commands) >= self.dies_after:
            raise SandboxFailed("the fake died, as ordered")
        self.commands.append(text)
        answer = self.answers.get(text, "")
        return cut(Finished(0, stdout=answer) if isinstance(answer, str) else answer, limits=limits)

    def shell(self) -> FakeSandbox:
        return self

    def attach(self, argv: list[str]) -> FakeRunning:
        return FakeRunning(self.run(argv))

    def write(self, path: str, data: bytes | str) -> None:
        self._require_open()
        self.files[_normal(path)] = encoded(data) if isinstance(data, str) else data

    def read(self, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        self._require_open()
        if _normal(path) not in self.files:
            raise FileNotFoundError(f"no file {path!r} in the sandbox")
        return self.files[_normal(path)][:max_bytes]

    def close(self) -> None:
        self.num_closed += 1

    def _require_open(self) -> None:
        if self.num_closed:
            raise SandboxFailed("the sandbox is closed")


class FakeRunning:
    """A process that has ended; `sent` records its input."""

    def __init__(self, finished: Finished) -> None:
        self._finished = finished
        output = (1, encoded(finished.stdout)), (2, encoded(finished.stderr))
        self._left = [(stream, data) for stream, data in output if data]
        self.sent = b""

    def send(self, data: bytes, *, timeout_s: float) -> None:
        self.sent += data

    def receive(self, timeout_s: float) -> tuple[int, bytes] | None:
        return self._left.pop(0) if self._left else (0, b"")

    def exit_code(self, timeout_s: float) -> int | None:
        return self._finished.exit_code

    def kill(self) -> None:
        self._left.clear()

    def close(self) -> None:
        pass


class FakeSandboxes:
    """A provider of fakes; `opened` records them with their needs and sessions."""

    def __init__(self, *, answers: Mapping[str, Finished | str] | None = None, fails: bool = False) -> None:
        self._answers, self._fails = answers, fails
        self.opened: list[tuple[Need, str, FakeSandbox]] = []

    def require(self, need: Need) -> None:
        pass

    def open(self, need: Need | str, *, image: str = "", session: str = "") -> Sandbox:
        if self._fails:
            raise SandboxFailed("the fake provider has none, as ordered")
        sandbox = FakeSandbox(answers=self._answers)
        self.opened.append((need if isinstance(need, Need) else Need(kind_of(need), image=image), session, sandbox))
        return sandbox

    def close(self) -> None:
        for _, _, sandbox in self.opened:
            sandbox.close()


def cut(finished: Finished, *, limits: Limits) -> Finished:
    kept = limits.output_bytes
    if max(len(finished.stdout), len(finished.stderr)) <= kept:
        return finished
    return replace(finished, stdout=finished.stdout[:kept], stderr=finished.stderr[:kept], truncated=True)


def _normal(path: str) -> str:
    normal = posixpath.normpath(checked_path(path).lstrip("/"))
    if normal.split("/")[0] == "..":
        raise PermissionError(f"{path!r} leads out of the sandbox's folder")
    return normal
