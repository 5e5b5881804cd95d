"""What the drivers share. Promise: no path leads out of a sandbox with a file system of its own.

A `ContainedSandbox` writes and reads files with a process inside. No path is resolved outside,
where a symbolic link, `..` or a race could mislead it.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from abc import ABC, abstractmethod
from pathlib import Path

from ludus.errors import SandboxFailed
from ludus.sandboxes.owner import drop_label, write_label
from ludus.sandboxes.process_handle import ProcessHandle, gather
from ludus.sandboxes.sandbox import (
    MAX_FILE_BYTES,
    Command,
    Finished,
    Kind,
    Label,
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


class SandboxBase(ABC):
    kind: Kind

    def __init__(self, label: Label, *, state: Path) -> None:
        self.label, self._state = label, state
        self.closed = False
        self._closing = threading.Lock()
        self._live: weakref.WeakSet[ProcessHandle] = weakref.WeakSet()
        self._shells: list[PersistentShell] = []

    @abstractmethod
    def attach(self, argv: list[str]) -> ProcessHandle: ...

    @abstractmethod
    def _end(self) -> None:
        """Frees what the driver holds. Every process has been killed before."""

    def start(self) -> None:
        write_label(self._state, self.label, kind=self.kind)

    def run(self, command: Command, *, limits: Limits = Limits()) -> Finished:
        return refusal(command) or gather(self.attach(argv_of(command, shell=self._shell_argv()[0])), limits=limits)[0]

    def shell(self) -> PersistentShell:
        self._require_open()
        shell = PersistentShell(lambda: self.attach(self._shell_argv()))
        self._shells.append(shell)
        return shell

    def close(self) -> None:
        with self._closing:
            if self.closed:
                return
            self.closed = True
        for handle in list(self._live):
            handle.kill()
        for shell in self._shells:
            shell.close()
        self._end()
        drop_label(self._state, self.label.id)

    def _shell_argv(self) -> list[str]:
        return ["/bin/sh"]

    def _remembered(self, handle: ProcessHandle) -> ProcessHandle:
        self._live.add(handle)
        if self.closed:  # closed while it was started
            handle.kill()
        return handle

    def _require_open(self) -> None:
        if self.closed:
            raise SandboxFailed("the sandbox is closed")


class ContainedSandbox(SandboxBase):
    def write(self, path: str, data: bytes | str) -> None:
        data = encoded(data) if isinstance(data, str) else data
        self._in_shell(_WRITE, path, num_bytes=len(data), stdin=data)

    def read(self, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        return self._in_shell(_READ, path, num_bytes=min(max_bytes, MAX_FILE_BYTES))

    def _in_shell(self, script: str, path: str, *, num_bytes: int, stdin: bytes | None = None) -> bytes:
        handle = self.attach(["/bin/sh", "-c", script, "sh", _operand(path), str(num_bytes)])
        if stdin is not None:
            with contextlib.suppress(OSError):  # its stderr says why
                handle.send(stdin, timeout_s=FILE_S)
        kept = max(num_bytes, Limits().output_bytes)
        done, data = gather(handle, limits=Limits(time_s=FILE_S, output_bytes=kept))
        if done.exit_code:
            raise _error(path, "took too long" if done.timed_out else done.stderr.strip())
        return data[:num_bytes]


def _operand(path: str) -> str:
    """A path that no tool takes for an option."""
    path = decoded(encoded(checked_path(path)))
    return path if path.startswith("/") else f"./{path}"


def _error(path: str, text: str) -> OSError:
    cause = (text.splitlines() or ["no reason given"])[0]
    kinds = {
        "No such file": FileNotFoundError,
        "nonexistent": FileNotFoundError,
        "Permission": PermissionError,
        "Read-only": PermissionError,
    }
    kind = next((kind for phrase, kind in kinds.items() if phrase in cause), OSError)
    return kind(f"{path!r} in the sandbox: {cause}")
