"""Output on its way from a process, whoever is late."""

import os
from contextlib import ExitStack

import pytest

from ludus.sandboxes import process_handle
from ludus.sandboxes.process_handle import Pipes
from ludus.sandboxes.sandbox import Limits
from ludus.sandboxes.shell import PersistentShell


@pytest.fixture
def pipes():
    """Pipes of a process that is a test's to play: (pipes, where it writes, what tells its end)."""
    with ExitStack() as kept:
        (for_it, stdin), (stdout, writes), (stderr, complains), (done, ends) = (os.pipe() for _ in range(4))
        for fd in (for_it, writes, complains, done, ends):
            kept.callback(os.close, fd)
        last_words: list[bytes] = []
        made = Pipes(
            stdin, stdout, stderr, done=done, exited=lambda _: 0,
            end=lambda: os.write(writes, b"".join(last_words)), release=lambda: None,
        )  # fmt: skip
        kept.callback(made.close)
        yield made, last_words, ends


def test_what_was_written_before_the_end_is_read_however_late_the_reader_is(pipes, monkeypatch):
    monkeypatch.setattr(
        process_handle, "DRAIN_S", 0.0
    )  # as if it had been stopped for as long as what was left behind may take
    made, last_words, ends = pipes
    last_words.append(b"last words")
    os.write(ends, b"x")
    assert made.receive(60) == (1, b"last words")
    last_words.clear()
    assert made.receive(60) == (0, b"")


class Stubborn:
    """Says nothing until it is killed, then its last words, and is gone only when somebody has read them."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self._unread = [(1, b"last"), (1, b"words"), (0, b"")]

    def send(self, data: bytes, *, timeout_s: float) -> None:
        self.did.append("send")

    def receive(self, timeout_s: float) -> tuple[int, bytes] | None:
        return self._unread.pop(0) if "kill" in self.did else None

    def exit_code(self, timeout_s: float) -> int | None:
        self.did.append("wait")
        assert not self._unread, "a container's service waits until all is read"
        return 137

    def kill(self) -> None:
        self.did.append("kill")

    def close(self) -> None:
        self.did.append("close")


def test_a_command_that_is_out_of_time_is_gone_before_the_next_one_can_begin():
    """In a container a kill strikes all that runs there: also what was begun a moment later, if it came upon it."""
    alone = Stubborn()
    assert process_handle.gather(alone, limits=Limits(time_s=0.0))[0].timed_out
    assert alone.did == ["kill", "wait", "close"]
    in_a_shell = Stubborn()
    assert PersistentShell(lambda: in_a_shell).run("sleep 1000", limits=Limits(time_s=0.0)).timed_out
    assert in_a_shell.did[-3:] == ["kill", "wait", "close"]
