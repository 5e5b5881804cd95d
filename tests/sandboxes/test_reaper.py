"""Owners that are killed: nothing of theirs survives, and nothing of anybody else's is touched."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ludus.sandboxes import cgroups, reaper
from ludus.sandboxes.docker_api import DockerApi
from ludus.sandboxes.owner import Owner, home_of, is_alive
from ludus.sandboxes.provider import Sandboxes, _quietly
from ludus.sandboxes.sandbox import Need
from tests.sandboxes.conftest import IMAGE, make_state, need, new_marker, sleeping, wait_for

OWNER = """
import sys, time
from pathlib import Path
from ludus.sandboxes.provider import Sandboxes
from ludus.sandboxes.sandbox import Need, Room
kind, image, state, sleep = sys.argv[1:]
sandboxes = Sandboxes(run="doomed", state=Path(state), warm=0)
sandbox = sandboxes.open(Need(kind, image=image, room=Room(memory_mb=64, disk_mb=16)), session="s1")
shell = sandbox.shell()
print(shell.run(f"setsid sleep {sleep} >/dev/null 2>&1 & sleep {sleep} & echo ready").stdout.strip(), flush=True)
time.sleep(1000)
"""


def start_owner(kind: str, state: Path, marker: str) -> subprocess.Popen[str]:
    image = IMAGE if kind == "container" else ""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, kind, image, str(state), marker], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    assert owner.stdout.readline().strip() == "ready"
    return owner


def kill(owner: subprocess.Popen[str]) -> None:
    owner.send_signal(signal.SIGKILL)
    owner.communicate()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return make_state(tmp_path)


@pytest.mark.parametrize("kind", ["process", "namespace", "container"])
def test_after_kill_9_of_its_owner_nothing_of_a_sandbox_is_left(kind, state, request):
    need(kind, request)
    marker = new_marker()
    owner = start_owner(kind, state, marker)
    try:
        assert wait_for(lambda: len(sleeping(marker)) == 2), "both have been forked, and become sleeps in a moment"
        assert reaper.sweep(state) == [], "a live owner's things are not touched"
    finally:
        kill(owner)
    if kind == "namespace":
        assert wait_for(lambda: not sleeping(marker)), "a namespace ends with its owner, without a reaper"
    with_reaper = Sandboxes(state=state, warm=0)
    try:
        assert wait_for(lambda: leaves_no_group(with_reaper, state))
        assert wait_for(lambda: not sleeping(marker))
        assert list((state / "labels").iterdir()) == []
        assert list((state / "folders").iterdir()) == []
        assert len(list((state / "leases").iterdir())) == 1, "only the reaper's own"
        if kind == "container":
            api = DockerApi(Path(os.environ["DOCKER_HOST"].removeprefix("unix://")))
            assert api.containers(f"ludus.home={home_of(state)}") == []
            api.close()
    finally:
        with_reaper.close()


def leaves_no_group(sandboxes: Sandboxes, state: Path) -> bool:
    """A group goes with the sweep that finds it empty, and its last processes may take a moment."""
    sandboxes.sweep()
    return cgroups.leftovers(home_of(state)) == {}


def test_an_init_process_that_is_killed_takes_its_namespaces_along_and_is_replaced(state, request):
    asked = need("namespace", request)
    provider = Sandboxes(state=state, warm=0)
    marker = new_marker()
    try:
        sandbox = provider.open(asked)
        sandbox.shell().run(f"sleep {marker} &")
        assert wait_for(lambda: len(sleeping(marker)) == 1)
        provider._init._process.kill()
        assert wait_for(lambda: not sleeping(marker))
        provider._init._process.wait()
        assert provider.open(asked).run("echo new").stdout == "new\n"
    finally:
        provider.close()


def test_a_stopped_init_process_does_not_save_its_namespaces(state, request):
    """The worst case: it cannot notice its owner's death. The reaper finds it by its mark."""
    need("namespace", request)
    marker = new_marker()
    owner = start_owner("namespace", state, marker)
    assert wait_for(lambda: len(sleeping(marker)) == 2)
    inits = [int(pid) for pid in _children(owner.pid)]
    inner = [pid for init in inits for pid in _children(init)]
    for pid in inner:
        os.kill(pid, signal.SIGSTOP)
    kill(owner)
    reaper.sweep(state)
    assert wait_for(lambda: not sleeping(marker))


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_closing_the_provider_leaves_nothing(state, request):
    asked = need("namespace", request)
    sandboxes = Sandboxes(state=state, run="r", warm=0)
    sandbox = sandboxes.open(asked, session="s9")
    label = json.loads((state / "labels" / sandbox.label.id).read_text())
    assert (label["run"], label["session"], label["kind"]) == ("r", "s9", "namespace")
    assert is_alive(state, label["owner"])
    sandboxes.open(Need("process"))
    sandboxes.close()
    assert [str(each) for folder in ("labels", "folders", "leases") for each in (state / folder).iterdir()] == []
    assert cgroups.leftovers(home_of(state)) == {}


def test_a_sandbox_that_its_own_process_forgot_is_removed_too(state, request):
    asked = need("namespace", request)
    sandboxes = Sandboxes(state=state, warm=0)
    try:
        lost, kept = sandboxes.open(asked), sandboxes.open(asked)
        sandboxes._live = {kept.label.id: kept}
        sandboxes.sweep()
        assert not (state / "labels" / lost.label.id).exists()
        assert kept.run("echo here").stdout == "here\n"
        lost.close()
    finally:
        sandboxes.close()


def test_another_homes_leases_are_none_of_our_business(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    owner = Owner(first)
    Owner(second).release()
    assert home_of(first) != home_of(second)
    assert reaper.sweep(second) == []
    assert is_alive(first, owner.id)
    owner.release()
    assert not is_alive(first, owner.id)


def test_an_owner_ends_with_its_process_and_not_before(state):
    Owner(state).release()
    held = (
        "import sys, time; from pathlib import Path; from ludus.sandboxes.owner import Owner; "
        "print(Owner(Path(sys.argv[1])).id, flush=True); time.sleep(1000)"
    )
    process = subprocess.Popen([sys.executable, "-c", held, str(state)], stdout=subprocess.PIPE, text=True)
    owner = process.stdout.readline().strip()
    assert is_alive(state, owner)
    assert is_alive(state, owner), "asking does not end it"
    kill(process)
    assert not is_alive(state, owner)
    assert reaper.sweep(state) == [f"owner {owner}"]


def test_a_process_that_ends_without_closing_them_takes_its_sandboxes_along_in_silence(state):
    opened = (
        "import sys; from pathlib import Path; from ludus.sandboxes.provider import Sandboxes; "
        "Sandboxes(state=Path(sys.argv[1]), warm=0).open('process').run('true')"
    )
    ended = subprocess.run([sys.executable, "-c", opened, str(state)], capture_output=True, text=True, timeout=240)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [str(each) for folder in ("labels", "folders", "leases") for each in (state / folder).iterdir()] == []


def test_a_sweep_that_closing_cut_short_is_no_fault_and_any_other_is_told(caplog):
    closed = threading.Event()

    def fails():
        raise OSError("the service is gone")

    _quietly(fails, unless=closed)
    assert "the service is gone" in caplog.text
    caplog.clear()
    closed.set()
    _quietly(fails, unless=closed)
    assert not caplog.text
