"""Folders for programs that write to disk go with their process, however it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from ludus.sandboxes.scratch import Scratch

OWNER = """
import sys, time
from ludus.sandboxes.scratch import Scratch
kept = Scratch()
(kept.path / "profile").write_text("x")
print(kept.path, flush=True)
time.sleep(float(sys.argv[1]))
"""


def owner(state: Path, *, sleeps: float) -> tuple[subprocess.Popen[str], Path]:
    command = [sys.executable, "-c", OWNER, str(sleeps)]
    environ = {**os.environ, "LUDUS_STATE": str(state)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_what_a_killed_process_left_goes_with_the_next_start_and_nothing_of_a_live_one(tmp_path):
    killed, left = owner(tmp_path, sleeps=1000)
    living, kept = owner(tmp_path, sleeps=1000)
    try:
        end(killed)
        assert (left / "profile").exists(), "nobody could have removed it yet"
        next_one, own = owner(tmp_path, sleeps=0)
        next_one.communicate()
        assert not left.exists()
        assert (kept / "profile").exists()
        assert own != left
    finally:
        end(living)
    last, _ = owner(tmp_path, sleeps=1000)
    try:
        assert len(list((tmp_path / "folders").iterdir())) == 1
        assert len(list((tmp_path / "leases").iterdir())) == 1
    finally:
        end(last)


def test_a_closed_folder_is_gone_and_may_be_closed_again():
    scratch = Scratch()
    (scratch.path / "file").write_text("x")
    scratch.close()
    scratch.close()
    assert not scratch.path.exists()
