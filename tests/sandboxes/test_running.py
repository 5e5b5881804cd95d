"""Output on its way from a process, whoever is late."""

import os
from contextlib import ExitStack

import pytest

from ludus.sandboxes import running
from ludus.sandboxes.running import Pipes


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
            end=lambda: os.write(writes, b"".join(last_words)), let_go=lambda: None,
        )  # fmt: skip
        kept.callback(made.close)
        yield made, last_words, ends


def test_what_was_written_before_the_end_is_read_however_late_the_reader_is(pipes, monkeypatch):
    monkeypatch.setattr(
        running, "DRAIN_S", 0.0
    )  # as if it had been stopped for as long as what was left behind may take
    made, last_words, ends = pipes
    last_words.append(b"last words")
    os.write(ends, b"x")
    assert made.receive(60) == (1, b"last words")
    last_words.clear()
    assert made.receive(60) == (0, b"")
