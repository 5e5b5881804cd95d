"""One long-lived shell in a sandbox: a command costs a write and a read. Promise: an answer is its command's, or the shell is renewed.

The end of a command's output is told by a marker drawn afresh for it (128 random bits), sent in two halves so that not even `set -x`
prints it whole. Commands get an empty standard input, so they cannot read it there. Code in the same sandbox that traces the shell
can still learn it and misreport its own results, never another sandbox's: what must not be forged (grading) is a `run`.
"""

from __future__ import annotations

import secrets
import shlex
import threading
import time
from collections.abc import Callable

from ludus.errors import SandboxFailed
from ludus.sandboxes.process_handle import FLOOD_BYTES, GRACE_S, Kept, ProcessHandle, end
from ludus.sandboxes.sandbox import Finished, Limits, encoded, refusal

SETUP = b"""exec 8>&1 9>&2
__ludus() { printf '%s%s%d\\n' "$1" "$2" "$?" >&8; printf '%s%s\\n' "$1" "$2" >&9; }
"""
"""Copies of its output, so that a command that redirects the shell's own does not silence it; and what prints the marker."""


class PersistentShell:
    """`start` makes the process: a POSIX shell that reads its commands from standard input."""

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
            except TimeoutError:  # stopped, or stuck: it does not even read
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
            except OSError as error:  # it died between two commands: a new one, once
                self._end()
                if last:
                    raise SandboxFailed(f"the shell does not start: {error}") from error
        raise AssertionError("unreachable")

    def close(self) -> None:
        """From any thread: a command that runs ends with it."""
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
        deadline_s = time.monotonic() + limits.time_s
        code, timed_out = None, False
        while not (out.ended and err.ended):
            event = running.receive(max(0.0, deadline_s - time.monotonic()))
            if event is None:
                timed_out = True
                break
            stream, data = event
            if stream == 0:  # the shell itself is gone: `exit`, or it was killed
                code = running.exit_code(GRACE_S)
                break
            (out if stream == 1 else err).add(data)
            if out.kept.num_bytes + err.kept.num_bytes > FLOOD_BYTES:
                break
        intact = out.ended and err.ended
        if not intact:
            if code is None:
                end(running)
            self._end()
            out.give_up()
            err.give_up()
        return Finished(
            out.exit_code if intact else 137 if code is None else code,
            stdout=out.kept.text(),
            stderr=err.kept.text(),
            truncated=out.kept.truncated or err.kept.truncated,
            timed_out=timed_out,
            restarted=not intact,
        )


class Stream:
    """Output up to the marker, which may arrive in pieces."""

    def __init__(self, marker: bytes, limit: int) -> None:
        self.kept = Kept(limit)
        self.ended = False
        self.exit_code = 0
        self._marker = marker
        self._pending = b""

    def add(self, data: bytes) -> None:
        if self.ended:
            return  # a background process; nobody asked
        data = self._pending + data
        at = data.find(self._marker)
        end = data.find(b"\n", at) if at >= 0 else -1
        if end >= 0:
            self.exit_code = int(data[at + len(self._marker) : end] or b"0")
            self.kept.add(data[:at])
            self.ended = True
            return
        # all but what may be the marker's beginning, or all of it without its line's end
        safe = at if at >= 0 else max(0, len(data) - len(self._marker) + 1)
        self.kept.add(data[:safe])
        self._pending = data[safe:]

    def give_up(self) -> None:
        if not self.ended:
            self.kept.add(self._pending)


def script(command: str, *, first: str, second: str) -> bytes:
    """`command eval`, because a plain eval of unbalanced quotes ends a POSIX shell. Short, because bash reads its input byte by byte."""
    body = encoded(shlex.quote(command))
    return b"command eval " + body + f" </dev/null >&8 2>&9\n__ludus {first} {second}\n".encode()
