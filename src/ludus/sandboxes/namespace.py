"""The namespace sandbox, with bubblewrap. Promise: no network, a read-only system, a disk of
limited size, no privileges, and it ends with this process.

    this process ──socket──▶ init (pid 1 of a pid namespace) ──▶ bubblewrap, one per `run` or shell
                                └── a sized tmpfs per sandbox, shared by its commands

Each command has its own processes and network; only files stay for the next. Control groups limit
memory, processes and processor time of the whole sandbox; without them, rlimits limit each process.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ludus.errors import SandboxFailed
from ludus.sandboxes import cgroups
from ludus.sandboxes.base import ContainedSandbox
from ludus.sandboxes.marks import MARK
from ludus.sandboxes.process_handle import Pipes, ProcessHandle, exit_code_of
from ludus.sandboxes.sandbox import FOLDER, UID, Kind, Label, Mount, Need, Room

START_S = 10.0
BASE = "/dev/shm"
"""Where the init process mounts the disks, in its own mount namespace."""


class NamespaceInit:
    """Starts namespace_init.py and talks to it. One per process, for all its sandboxes."""

    def __init__(self, *, mark: str) -> None:
        """`mark` is the owner's id: the reaper finds a program that outlives us by it."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        owner = os.pidfd_open(os.getpid())
        as_user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        program = [sys.executable, "-I", "-S", str(Path(__file__).with_name("namespace_init.py"))]
        with theirs:
            self._process = subprocess.Popen(
                ["unshare", *as_user, *["--mount-proc", "--pid", "--fork", "--kill-child"],
                 *program, str(theirs.fileno()), str(owner)],
                pass_fds=(theirs.fileno(), owner),
                env={"PATH": os.environ.get("PATH", os.defpath), MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for this process
            )  # fmt: skip
        os.close(owner)
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        self._socket.settimeout(START_S)
        try:
            ready = self._socket.recv(16)
        except TimeoutError:
            ready = b""
        if not ready:
            self.close()
            assert self._process.stderr is not None
            cause = self._process.stderr.read().decode(errors="replace").strip()
            raise SandboxFailed(f"cannot create namespaces: {cause or 'no answer'}; run `ludus doctor` for a remedy")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, do: str, **request: Any) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                self._send({"do": do, **request}, [theirs.fileno()])
            ours.settimeout(START_S)
            answer = ours.recv(4096).decode()
        if answer != "ok":
            raise SandboxFailed(f"cannot {do} the disk of a namespace: {answer or 'the init process is gone'}")

    def spawn(self, **request: Any) -> Pipes:
        """A process whose streams we hold. stdin is a socket: a pipe can be reopened by /proc."""
        stdin, their_stdin = socket.socketpair()
        status, their_status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stdout, their_stdout = os.pipe()
        stderr, their_stderr = os.pipe()
        theirs = [their_status.detach(), their_stdin.detach(), their_stdout, their_stderr]
        try:
            self._send({"do": "spawn", **request}, theirs)
        except SandboxFailed:
            for fd in (stdin.detach(), status.detach(), stdout, stderr):
                os.close(fd)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        return _pipes(status, stdin=stdin.detach(), stdout=stdout, stderr=stderr)

    def _send(self, request: dict[str, Any], fds: list[int]) -> None:
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], fds)
        except OSError as error:
            raise SandboxFailed(f"the init process of the namespaces is gone: {error}") from error

    def close(self) -> None:
        self._socket.close()
        self._process.kill()  # --kill-child: everything inside ends with it
        self._process.wait()


def _pipes(status: socket.socket, *, stdin: int, stdout: int, stderr: int) -> Pipes:
    codes: list[int] = []

    def exited(timeout_s: float) -> int | None:
        if not codes and select.select([status], [], [], timeout_s)[0]:
            text = status.recv(4096).decode()
            number = text.lstrip("-").isdigit()
            # empty: the init process is gone, and everything with it
            codes.append(exit_code_of(int(text)) if number else 125 if text else 137)
        return codes[0] if codes else None

    def end() -> None:
        with contextlib.suppress(OSError):  # it has ended
            status.shutdown(socket.SHUT_WR)

    return Pipes(stdin, stdout, stderr, done=status.fileno(), exited=exited, end=end, release=status.close)


class NamespaceSandbox(ContainedSandbox):
    kind: Kind = "namespace"

    def __init__(self, label: Label, *, state: Path, init: Callable[[], NamespaceInit], need: Need) -> None:
        super().__init__(label, state=state)
        self._find_init, self._room = init, need.room
        self._prefix = bwrap(mounts=need.mounts, network=need.network, disk=f"{BASE}/{label.id}")
        self._group: cgroups.Group | None = None
        self._init: NamespaceInit | None = None

    def start(self) -> None:
        super().start()
        self._init = self._find_init()
        trees = cgroups.find()
        try:
            self._group = cgroups.make(trees, self.label.id, self._room) if trees.places else None
        except OSError as error:
            raise SandboxFailed(f"cannot create a control group for the sandbox: {error}") from error
        self._limits = rlimits(self._room, missing=trees.missing)
        self._init.ask("open", id=self.label.id, bytes=self._room.disk_mb * 2**20, uid=starter_uid())

    def attach(self, argv: list[str]) -> ProcessHandle:
        self._require_open()
        assert self._init is not None, "start() comes first"
        groups = [str(folder) for folder in self._group.folders] if self._group else []
        return self._remembered(
            self._init.spawn(argv=[*self._prefix, *argv], groups=groups, rlimits=self._limits, uid=starter_uid())
        )

    def _shell_argv(self) -> list[str]:
        return ["/bin/bash", "--noprofile", "--norc"] if Path("/bin/bash").exists() else ["/bin/sh"]

    def _end(self) -> None:
        if self._init is not None:
            with contextlib.suppress(SandboxFailed, OSError):  # gone, and the disk with it
                self._init.ask("remove", id=self.label.id)
        if self._group is not None:
            self._group.remove()


def bwrap(*, mounts: tuple[Mount, ...], network: bool, disk: str) -> list[str]:
    """The bubblewrap part of a command line. Later mounts cover earlier ones."""
    line = [shutil.which("bwrap") or "/usr/bin/bwrap"]
    line += ["--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    line += ["--uid", str(UID), "--gid", str(UID), "--hostname", "sandbox"]
    line += ["--share-net", "--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"] if network else []
    line += ["--disable-userns"] if can_forbid_namespaces() else []
    for folder in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        line += _system(folder)
    for path in ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl/certs"):
        line += ["--ro-bind-try", path, path]
    line += ["--proc", "/proc", "--dev", "/dev", "--size", str(8 * 2**20), "--tmpfs", "/dev/shm"]
    line += ["--bind", f"{disk}/work", FOLDER, "--bind", f"{disk}/tmp", "/tmp"]
    for mount in mounts:
        line += ["--bind" if mount.writable else "--ro-bind", mount.source, mount.target]
    line += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", FOLDER]
    variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": FOLDER, "LANG": "C.UTF-8", "TMPDIR": "/tmp"}
    for name, value in variables.items():
        line += ["--setenv", name, value]
    return [*line, "--"]


def rlimits(room: Room, *, missing: tuple[str, ...]) -> dict[str, int]:
    """Limits per process; memory and processes only if no control group limits them."""
    limits = {"RLIMIT_CORE": 0, "RLIMIT_NOFILE": 1024}
    if "memory" in missing:
        limits["RLIMIT_AS"] = room.memory_mb * 2**20
    if "pids" in missing:
        limits["RLIMIT_NPROC"] = room.num_processes
    return limits


@functools.cache
def can_forbid_namespaces() -> bool:
    """Bubblewrap 0.8 forbids user namespaces, a common way to attack the kernel."""
    return "--disable-userns" in subprocess.run(["bwrap", "--help"], capture_output=True, text=True, check=False).stdout


def _system(folder: str) -> list[str]:
    path = Path(folder)
    if path.is_symlink():
        return ["--symlink", os.readlink(path), folder]
    return ["--ro-bind", folder, folder] if path.exists() else []


def starter_uid() -> int:
    """User that starts bubblewrap: not root, who ignores rlimits. A plain user is mapped to 0."""
    return UID if os.geteuid() == 0 else 0
