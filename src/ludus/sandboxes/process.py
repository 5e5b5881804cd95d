"""A sandbox of plain processes in a folder of its own, for trusted code. Promise: time and output
are limited, and nothing stays behind.

Nothing else is contained: the code sees this machine's files, network and memory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from ludus.sandboxes.base import SandboxBase
from ludus.sandboxes.marks import MARK, kill_marked
from ludus.sandboxes.owner import FOLDERS
from ludus.sandboxes.process_handle import Pipes, ProcessHandle, exit_code_of
from ludus.sandboxes.sandbox import MAX_FILE_BYTES, Command, Finished, Kind, Label, Limits, checked_path, encoded


class ProcessSandbox(SandboxBase):
    kind: Kind = "process"

    def __init__(self, label: Label, *, state: Path) -> None:
        super().__init__(label, state=state)
        self.folder = state / FOLDERS / label.id

    def start(self) -> None:
        super().start()
        self.folder.mkdir(mode=0o700)

    def run(self, command: Command, *, limits: Limits = Limits()) -> Finished:
        try:
            return super().run(command, limits=limits)
        except OSError as error:
            return Finished(127, stderr=f"ludus: {error}\n")

    def attach(self, argv: list[str]) -> ProcessHandle:
        self._require_open()
        ours, theirs = socket.socketpair()
        path, home = os.environ.get("PATH", os.defpath), str(self.folder)
        with theirs:
            process = subprocess.Popen(
                argv,
                cwd=self.folder,
                env={"PATH": path, "HOME": home, "LANG": "C.UTF-8", MARK: self.label.id},
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        return self._remembered(_pipes(process, stdin=ours.detach()))

    def write(self, path: str, data: bytes | str) -> None:
        target = self._inside(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(encoded(data) if isinstance(data, str) else data)

    def read(self, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        target = self._inside(path)
        if not target.exists():
            raise FileNotFoundError(f"no file {path!r} in the sandbox")
        if not target.is_file():  # reading a device or a pipe might never end
            raise OSError(f"{path!r} is not a plain file")
        with target.open("rb") as file:
            return file.read(max_bytes)

    def _end(self) -> None:
        kill_marked(lambda mark: mark == self.label.id)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _inside(self, path: str) -> Path:
        self._require_open()
        target = (self.folder / checked_path(path)).resolve()
        if not target.is_relative_to(self.folder.resolve()):
            raise PermissionError(f"{path!r} leads out of the sandbox's folder")
        return target


def _pipes(process: subprocess.Popen[bytes], *, stdin: int) -> Pipes:
    assert process.stdout is not None
    assert process.stderr is not None
    pidfd = os.pidfd_open(process.pid)

    def end() -> None:
        if process.returncode is None:  # not waited for yet, so its pid cannot have been reused
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def exited(timeout_s: float) -> int | None:
        try:
            return exit_code_of(process.wait(timeout_s))
        except subprocess.TimeoutExpired:
            return None

    def release() -> None:
        exited(1.0)
        os.close(pidfd)

    stdout, stderr = os.dup(process.stdout.fileno()), os.dup(process.stderr.fileno())
    process.stdout.close()
    process.stderr.close()
    return Pipes(stdin, stdout, stderr, done=pidfd, exited=exited, end=end, release=release)
