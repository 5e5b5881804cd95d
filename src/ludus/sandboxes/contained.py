"""Base of the sandboxes with a file system of their own. Promise: no path leads out of the sandbox.

Files are written and read by a process inside. No path is resolved outside, where a symbolic link, `..` or a
race could mislead it.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from abc import ABC, abstractmethod

from ludus.errors import SandboxFailed
from ludus.sandboxes.process_handle import ProcessHandle, finish, gather
from ludus.sandboxes.sandbox import (
    MAX_FILE_BYTES,
    Command,
    Finished,
    Limits,
    argv_of,
    checked_path,
    decoded,
    encoded,
    refusal,
)
from ludus.sandboxes.shell import PersistentShell

FILE_S = 30.0
_WRITE = 'd=$(dirname -- "$1") && mkdir -p -- "$d" && head -c "$2" > "$1"'
_READ = 'if [ -d "$1" ] || { [ -e "$1" ] && [ ! -f "$1" ]; }; then echo "not a plain file" >&2; exit 1; fi; head -c "$2" -- "$1"'


class ContainedSandbox(ABC):
    def __init__(self) -> None:
        self.closed = False
        self._closing = threading.Lock()
        self._live: weakref.WeakSet[ProcessHandle] = weakref.WeakSet()
        self._shells: list[PersistentShell] = []

    @abstractmethod
    def attach(self, argv: list[str]) -> ProcessHandle: ...

    @abstractmethod
    def _shell_argv(self) -> list[str]: ...

    @abstractmethod
    def _end(self) -> None: ...

    def run(self, command: Command, *, limits: Limits = Limits()) -> Finished:
        return refusal(command) or finish(self.attach(argv_of(command, shell=self._shell_argv()[0])), limits=limits)

    def shell(self) -> PersistentShell:
        self._require_open()
        shell = PersistentShell(lambda: self.attach(self._shell_argv()))
        self._shells.append(shell)
        return shell

    def write(self, path: str, data: bytes | str) -> None:
        data = encoded(data) if isinstance(data, str) else data
        running = self.attach(["/bin/sh", "-c", _WRITE, "sh", _operand(path), str(len(data))])
        with contextlib.suppress(OSError):  # its stderr says why
            running.send(data, timeout_s=FILE_S)
        done = gather(running, limits=Limits(time_s=FILE_S))
        if done.exit_code:
            raise _error(path, done.err.text(), timed_out=done.timed_out)

    def read(self, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        max_bytes = min(max_bytes, MAX_FILE_BYTES)
        running = self.attach(["/bin/sh", "-c", _READ, "sh", _operand(path), str(max_bytes)])
        done = gather(running, limits=Limits(time_s=FILE_S, output_bytes=max_bytes))
        if done.exit_code:
            raise _error(path, done.err.text(), timed_out=done.timed_out)
        return done.out.data

    def close(self) -> None:
        with self._closing:
            if self.closed:
                return
            self.closed = True
        for running in list(self._live):
            running.kill()
        for shell in self._shells:
            shell.close()
        self._end()

    def _remembered(self, running: ProcessHandle) -> ProcessHandle:
        self._live.add(running)
        if self.closed:  # closed while it was started
            running.kill()
        return running

    def _require_open(self) -> None:
        if self.closed:
            raise SandboxFailed("the sandbox is closed")


def _operand(path: str) -> str:
    """A path that no tool takes for an option."""
    path = decoded(encoded(checked_path(path)))
    return path if path.startswith("/") else f"./{path}"


def _error(path: str, text: str, *, timed_out: bool) -> OSError:
    cause = "took too long" if timed_out else (text.strip().splitlines() or ["no reason given"])[0]
    kinds = {
        "No such file": FileNotFoundError,
        "nonexistent": FileNotFoundError,
        "Permission": PermissionError,
        "Read-only": PermissionError,
    }
    kind = next((kind for phrase, kind in kinds.items() if phrase in cause), OSError)
    return kind(f"{path!r} in the sandbox: {cause}")
