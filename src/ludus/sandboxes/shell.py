"""A long-lived shell in a sandbox: a command costs a write and a read. Promise: a result belongs to
its command, or the shell is replaced.

A marker of 128 random bits, drawn for each command, ends its output. It is sent in two halves so
that `set -x` does not print it whole, and commands get an empty standard input so that they cannot
read it. Code in the same sandbox that traces the shell can still learn it and misreport its own
results; use `run` for grading.
"""

from __future__ import annotations

import secrets
import shlex
import threading
import time
from collections.abc import Callable

from ludus.errors import SandboxFailed
from ludus.sandboxes.process_handle import GRACE_S, Captured, ProcessHandle, capture, end, finished
from ludus.sandboxes.sandbox import Finished, Limits, encoded, refusal

SETUP = b"""exec 8>&1 9>&2
__ludus() { printf '%s%s%d\\n' "$1" "$2" "$?" >&8; printf '%s%s\\n' "$1" "$2" >&9; }
"""
"""Copies the output streams, which a command may redirect; defines what prints the marker."""


class PersistentShell:
    """`start` starts a POSIX shell that reads its commands from standard input."""

    def __init__(self, start: Callable[[], ProcessHandle]) -> None:
        self._start = start
        self._running: ProcessHandle | None = None
        self._lock = threading.Lock()
        self._closed = False

    def run(self, command: str, *, limits: Limits = Limits()) -> Finished:
        if refused := refusal(command):
            return refused
        with self._lock:
            first, second = secrets.token_hex(8), secrets.token_hex(8)
            text = script(command, first=first, second=second)
            try:
                running = self._sent(text, limits=limits)
            except TimeoutError:  # the shell is stopped or stuck: it does not read
                if self._running is not None:
                    end(self._running)
                self._end()
                return Finished(137, timed_out=True, restarted=True)
            return self._collect(running, marker=f"{first}{second}".encode(), limits=limits)

    def _sent(self, text: bytes, *, limits: Limits) -> ProcessHandle:
        for last in (False, True):
            running = self._alive()
            try:
                running.send(text, timeout_s=limits.time_s)
                return running
            except TimeoutError:
                raise
            except OSError as error:  # it died between two commands: start a new one, once
                self._end()
                if last:
                    raise SandboxFailed(f"the shell does not start: {error}") from error
        raise AssertionError("unreachable")

    def close(self) -> None:
        """May be called from any thread; a running command ends."""
        self._closed = True
        running = self._running
        if running is not None and self._lock.locked():
            running.kill()
        with self._lock:
            self._end()

    def _alive(self) -> ProcessHandle:
        if self._closed:
            raise SandboxFailed("the shell is closed; open a new one with sandbox.shell()")
        if self._running is None:
            self._running = self._start()
            self._running.send(SETUP, timeout_s=GRACE_S)
        return self._running

    def _end(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None

    def _collect(self, running: ProcessHandle, *, marker: bytes, limits: Limits) -> Finished:
        out, err = Stream(marker, limits.output_bytes), Stream(marker, limits.output_bytes)
        stopped = capture(running, out, err, deadline_s=time.monotonic() + limits.time_s)
        code: int | None = out.exit_code
        if stopped != "marked":  # "end": the shell itself ended, by `exit`, or it was killed
            code = running.exit_code(GRACE_S) if stopped == "end" else None
            if code is None:
                end(running)
            self._end()
            out.give_up()
            err.give_up()
        return finished(code, out, err, timed_out=stopped == "late", restarted=stopped != "marked")


class Stream(Captured):
    """Output up to the marker, which may be split across reads."""

    def __init__(self, marker: bytes, limit: int) -> None:
        super().__init__(limit)
        self.exit_code = 0
        self._marker = marker
        self._pending = b""

    def add(self, data: bytes) -> None:
        if self.ended:
            return  # output of a background process
        data = self._pending + data
        at = data.find(self._marker)
        end = data.find(b"\n", at) if at >= 0 else -1
        if end >= 0:
            self.exit_code = int(data[at + len(self._marker) : end] or b"0")
            super().add(data[:at])
            self.ended = True
            return
        # keep back what may be the marker, without the end of its line
        safe = at if at >= 0 else max(0, len(data) - len(self._marker) + 1)
        super().add(data[:safe])
        self._pending = data[safe:]

    def give_up(self) -> None:
        if not self.ended:
            super().add(self._pending)


def script(command: str, *, first: str, second: str) -> bytes:
    """`command eval`, because unbalanced quotes in a plain eval end a POSIX shell."""
    body = encoded(shlex.quote(command))
    return b"command eval " + body + f" </dev/null >&8 2>&9\n__ludus {first} {second}\n".encode()
