"""A whole environment plane in processes of its own, to be killed. Promise: at the end nothing of
it runs, whatever happened.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx

from ludus.sandboxes import cgroups, detect
from ludus.sandboxes.owner import home_of
from tests.chaos.schedule import SERVICES, Kill, Victim
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
READY_S = 180.0
SLOTS = 6
HOSTED = {"worker 0": ("Plain", "Boxed"), "worker 1": ("Plain", "Penned")}


class Plane:
    """`folder` gets logs, notes, the player's files, and the state of controller and sandboxes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url, self.port = folder, "", free_port()
        self.mark = secrets.token_hex(8)
        self.marker = str(10**8 + secrets.randbelow(10**8))
        self.state = folder / "sandboxes"
        self.state.mkdir()
        self.level = "namespace" if detect.driver("namespace").works else "process"
        self.hold = folder / "hold"
        """While it is there, the turns of our worlds do not end."""
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._environ = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "LUDUS_TOKEN": "",
            "OMP_NUM_THREADS": "1",
            "LUDUS_STATE": str(self.state),
            "CHAOS_MARK": self.mark,
            "CHAOS_MARKER": self.marker,
            "CHAOS_NOTES": str(folder / "notes"),
            "CHAOS_HOLD": str(self.hold),
            "CHAOS_PARENT": str(os.getpid()),
            "CHAOS_LEVEL": self.level,
        }

    # ----------------------------------------------------------------------------- starting, ending

    def start(self, name: str) -> None:
        if name == "controller":
            quick = ["--heartbeat-s", "1", "--grace-s", "1"]
            place = ["--port", str(self.port), "--state", str(self.folder / "controller")]
            self.spawn(name, "-m", "ludus.cli.attached", "serve", "controller", *place, *quick)
            if not self.url:
                self._find_out_url()
        elif name == "client":
            self.spawn(name, "-m", "tests.chaos.player", self.url, str(self.folder))
        else:
            worlds = [f"tests.chaos.worlds:{world}" for world in HOSTED[name]]
            options = ["--controller", self.url, "--slots", str(SLOTS)]
            self.spawn(name, "-m", "ludus.cli.attached", "serve", "worker", *worlds, *options)

    def revive(self) -> None:
        """Starts what is not here. Some end by themselves, such as a worker whose first pen is
        killed: whoever keeps it starts it again."""
        for name in SERVICES:
            if name in self.running and self.running[name].poll() is not None:
                self.kill(name)
            if name not in self.running:
                self.start(name)

    def kill(self, name: str) -> None:
        self.running[name].kill()
        self.forget(name)

    def stop(self, name: str, *, patience_s: float) -> int:
        """Its exit status; raises TimeoutExpired."""
        self.running[name].send_signal(signal.SIGTERM)
        status = self.running[name].wait(patience_s)
        self.forget(name)
        return status

    def forget(self, name: str) -> None:
        """It has ended, or is about to."""
        self.running.pop(name).communicate()

    def close(self) -> None:
        for name in list(self.running):
            self.kill(name)
        for pid in self.leftovers():
            kill_process(pid, still=lambda pid=pid: pid in self.leftovers())

    def spawn(self, name: str, *arguments: str) -> None:
        with self.log(name).open("ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,  # ludus.cli.attached ends with it
                stdout=log,
                stderr=log,
                env=self._environ,
                cwd=self.folder,
                start_new_session=True,
            )

    def _find_out_url(self) -> None:
        log = self.log("controller")
        wait_until(lambda: b"ready at http" in log.read_bytes(), READY_S, "the controller is ready")
        line = next(line for line in log.read_text().splitlines() if "ready at http" in line)
        self.url = line.split()[-1]

    # -------------------------------------------------------------------------------------- killing

    def carry_out(self, burst: Iterable[Kill]) -> Iterator[str]:
        """What was done, as it is done. Who is away when it should be killed is let be."""
        began, back = time.monotonic(), dict[str, float]()
        for kill in burst:
            while (now := time.monotonic() - began) < kill.at_s or any(at_s <= now for at_s in back.values()):
                for name in [name for name, at_s in back.items() if at_s <= now]:
                    del back[name]
                    self.start(name)
                    yield f"{time.monotonic() - began:6.2f} s  start {name}"
                time.sleep(0.01)
            what = self._carry_out(kill)
            if what and kill.victim in SERVICES:
                back[kill.victim] = time.monotonic() - began + kill.away_s
            yield f"{time.monotonic() - began:6.2f} s  kill -9 {what or f'nobody: no {kill.victim} is here'}"

    def _carry_out(self, kill: Kill) -> str:
        if kill.victim in SERVICES:
            if kill.victim in self.running:
                self.kill(kill.victim)
                return kill.victim
            return ""
        while found := self.inner(kill.victim):
            pid = found[int(kill.which * len(found))]
            what = f"{kill.victim} {pid}: {' '.join(words_of(pid))[:60]}"
            if kill_process(pid, still=lambda pid=pid: pid in self.inner(kill.victim)):
                return what
        return ""

    def inner(self, victim: Victim) -> list[int]:
        """Processes that workers started: pens, or all that belongs to a sandbox, in the order of
        their pids."""
        ours = [pid for name in HOSTED if name in self.running for pid in descendants(self.running[name].pid)]
        pens = [pid for pid in ours if "ludus.hosting.session_process" in words_of(pid)]
        if victim == "pen":
            return sorted(pens)
        holders = [pid for pid in ours if any(word.endswith("holder.py") for word in words_of(pid))]
        boxed = {each for pid in holders for each in (pid, *descendants(pid))}
        marked = {pid for pid in ours if b"LUDUS_SANDBOX=" in environ_of(pid)}
        return sorted((boxed | marked) & set(pids()))

    # -------------------------------------------------------------------------------------- looking

    def get(self, path: str) -> Any:
        return httpx.get(f"{self.url}{path}", timeout=60).json()

    def log(self, name: str) -> Path:
        return self.folder / f"{name.replace(' ', '-')}.log"

    def holders(self) -> list[int]:
        """Processes that have held a turn."""
        file = Path(f"{self.hold}.by")
        return [int(line) for line in file.read_text().splitlines()] if file.exists() else []

    def sleeps(self, pid: int) -> bool:
        """It is what our worlds start in their sandboxes."""
        return self.marker in words_of(pid)

    def leftovers(self) -> list[int]:
        """Processes that were started by us, by those we started, or in their sandboxes, and are
        still alive."""
        mark, sandbox = f"CHAOS_MARK={self.mark}".encode(), f"LUDUS_SANDBOX={home_of(self.state)}-".encode()
        alive = [process.pid for process in self.running.values()]

        def is_ours(pid: int) -> bool:
            environ = environ_of(pid).split(b"\0")
            return mark in environ or any(each.startswith(sandbox) for each in environ) or self.sleeps(pid)

        return [pid for pid in pids() if pid not in alive and is_ours(pid)]

    def sandboxes_left(self) -> list[str]:
        """Labels, folders, leases and control groups. A lease that was just being taken has a
        hidden name, and holds nothing."""
        files = [file for name in ("labels", "folders", "leases") for file in (self.state / name).glob("[!.]*")]
        return [*map(str, files), *cgroups.leftovers(home_of(self.state))]


def wait_until(fact: Callable[[], Any], patience_s: float, what: str) -> None:
    give_up = time.monotonic() + patience_s
    while not fact():
        assert time.monotonic() < give_up, f"not within {patience_s:g} s: {what}"
        time.sleep(0.05)


def kill_process(pid: int, *, still: Callable[[], bool]) -> bool:
    """Unless it has gone meanwhile, and its number is somebody else's."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if found := still():
            signal.pidfd_send_signal(process, signal.SIGKILL)
        return found
    except ProcessLookupError:
        return False
    finally:
        os.close(process)


def pids() -> list[int]:
    """Of processes that are not dead already."""
    return [int(each) for each in os.listdir("/proc") if each.isdigit() and words_of(int(each))]


def words_of(pid: int) -> list[str]:
    """Its command line; nothing of a zombie."""
    return _read(pid, "cmdline").decode(errors="replace").rstrip("\0").split("\0") if _read(pid, "cmdline") else []


def environ_of(pid: int) -> bytes:
    return _read(pid, "environ")


def descendants(pid: int) -> list[int]:
    try:
        files = list(Path(f"/proc/{pid}/task").glob("*/children"))
        children = [int(word) for file in files for word in file.read_text().split()]
    except OSError:
        return []
    return [each for child in children for each in (child, *descendants(child))]


def _read(pid: int, file: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes()
    except OSError:
        return b""
