"""A running process in a sandbox. Promise: no output and no hang exceeds the limits."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from typing import Literal, Protocol

from ludus.sandboxes.sandbox import Finished, Limits, decoded

FLOOD_BYTES = 32 * 2**20
"""A command that writes more is killed, because reading on would keep this machine busy."""
GRACE_S = 5.0
"""How long a killed process may take to end."""
DRAIN_S = 0.25
_CHUNK = 64 * 1024


class ProcessHandle(Protocol):
    def send(self, data: bytes, *, timeout_s: float) -> None:
        """Writes to stdin. Raises OSError if it is gone, TimeoutError if it does not read."""
        ...

    def receive(self, timeout_s: float) -> tuple[int, bytes] | None:
        """(1, stdout) or (2, stderr); (0, b"") once both ended; None if nothing came in time."""
        ...

    def exit_code(self, timeout_s: float) -> int | None:
        """None if it still runs."""
        ...

    def kill(self) -> None:
        """Kills it and everything it started."""
        ...

    def close(self) -> None:
        """Frees the streams. Called by the reader, so that no reused file descriptor is read."""
        ...


class Captured:
    """The first `limit` bytes of a stream."""

    ended = False
    """Set by a subclass that knows where the output ends."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self.num_bytes = 0

    def add(self, data: bytes) -> None:
        self.num_bytes += len(data)
        self._data += data[: max(0, self._limit - len(self._data))]

    @property
    def truncated(self) -> bool:
        return self.num_bytes > len(self._data)

    @property
    def data(self) -> bytes:
        return bytes(self._data)

    def text(self) -> str:
        return decoded(self.data)


def gather(running: ProcessHandle, *, limits: Limits) -> tuple[Finished, bytes]:
    """Waits for the end, within the limits, and closes the handle. Returns stdout as bytes too."""
    out, err = Captured(limits.output_bytes), Captured(limits.output_bytes)
    deadline_s = time.monotonic() + limits.time_s
    code = None
    try:
        stopped = capture(running, out, err, deadline_s=deadline_s)
        if stopped == "end":
            code = running.exit_code(max(GRACE_S / 10, deadline_s - time.monotonic()))
        if code is None:
            end(running)
    finally:
        running.close()
    late = code is None and stopped != "flood"
    return finished(code, out, err, timed_out=late), out.data


def finished(exit_code: int | None, out: Captured, err: Captured, **more: bool) -> Finished:
    cut, code = out.truncated or err.truncated, 137 if exit_code is None else exit_code
    return Finished(code, stdout=out.text(), stderr=err.text(), truncated=cut, **more)


def end(running: ProcessHandle) -> None:
    """Kills it and waits until it is gone: killing a container's processes must not hit the next
    command. Drops its remaining output: a container service may wait until that is read."""
    running.kill()
    until_s = time.monotonic() + GRACE_S
    while (event := running.receive(max(0.0, until_s - time.monotonic()))) is not None and event[0]:
        if time.monotonic() > until_s:
            break
    running.exit_code(max(0.0, until_s - time.monotonic()))


def capture(
    running: ProcessHandle, out: Captured, err: Captured, *, deadline_s: float
) -> Literal["marked", "end", "flood", "late"]:
    """Reads until both captures ended, the process closed its streams, or a limit is exceeded."""
    while not (out.ended and err.ended):
        if out.num_bytes + err.num_bytes > FLOOD_BYTES:
            return "flood"
        event = running.receive(max(0.0, deadline_s - time.monotonic()))
        if event is None:
            return "late"
        stream, data = event
        if stream == 0:
            return "end"
        (out if stream == 1 else err).add(data)
    return "marked"


class Pipes:
    """A ProcessHandle over file descriptors. `done` is readable once the process has ended.

    Children of a finished process could hold its streams open for ever: they are killed, and have
    DRAIN_S to end."""

    def __init__(
        self,
        stdin: int,
        stdout: int,
        stderr: int,
        *,
        done: int,
        exited: Callable[[float], int | None],
        end: Callable[[], None],
        release: Callable[[], None],
    ) -> None:
        os.set_blocking(stdin, False)
        self._stdin, self._done = stdin, done
        self._streams = {stdout: 1, stderr: 2}
        self._exited, self._end, self._release = exited, end, release
        self._ended_by_s: float | None = None
        self._lock = threading.Lock()
        self._poll = select.poll()
        for fd in (stdout, stderr, done):
            self._poll.register(fd, select.POLLIN)

    def send(self, data: bytes, *, timeout_s: float) -> None:
        until_s, view = time.monotonic() + timeout_s, memoryview(data)
        while view:
            try:
                view = view[os.write(self._stdin, view) :]
            except BlockingIOError:
                if not select.select([], [self._stdin], [], max(0.0, until_s - time.monotonic()))[1]:
                    raise TimeoutError("the process does not read its input") from None

    def receive(self, timeout_s: float) -> tuple[int, bytes] | None:
        until_s = time.monotonic() + timeout_s
        while self._streams:
            stop_s = until_s if self._ended_by_s is None else min(until_s, self._ended_by_s)
            ready = [fd for fd, _ in self._poll.poll(max(0.0, stop_s - time.monotonic()) * 1000)]
            readable = [fd for fd in ready if fd in self._streams]
            if readable:
                data = os.read(readable[0], _CHUNK)
                if data:
                    return self._streams[readable[0]], data
                self._drop(readable[0])
            elif ready:
                self._poll.unregister(self._done)
                self._end()
                self._ended_by_s = time.monotonic() + DRAIN_S
            elif self._ended_by_s is not None and time.monotonic() >= self._ended_by_s:
                break  # a late reader gets all that was written in time
            elif time.monotonic() >= until_s:
                return None
        return 0, b""

    def exit_code(self, timeout_s: float) -> int | None:
        return self._exited(timeout_s)

    def kill(self) -> None:
        self._end()

    def close(self) -> None:
        with self._lock:
            self._end()
            for fd in list(self._streams):
                self._drop(fd)
            if self._stdin >= 0:
                os.close(self._stdin)
                self._stdin = -1
                self._release()

    def _drop(self, fd: int) -> None:
        del self._streams[fd]
        self._poll.unregister(fd)
        os.close(fd)


def exit_code_of(status: int) -> int:
    """A shell's exit code, 128 + N for signal N, from Python's status, -N."""
    return status if status >= 0 else 128 - status
