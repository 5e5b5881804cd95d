"""A namespace sandbox: bubblewrap. Promise: no network, a read-only system, a disk with a size, nobody's rights, and it dies with us.

    this process ──socket──▶ init (pid 1 of a pid namespace, own mounts) ──▶ bubblewrap, one per `run` or shell
                                └── a sized tmpfs per sandbox: what all its commands share

Each command has processes, network and system of its own, so nothing that one leaves behind meets the next; files stay. Memory, processes
and processor time of a sandbox are limited by control groups, where there are any; otherwise each process by rlimits.
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
from ludus.sandboxes.contained import ContainedSandbox
from ludus.sandboxes.marks import MARK
from ludus.sandboxes.owner import drop_label, write_label
from ludus.sandboxes.process_handle import Pipes, ProcessHandle, exit_code_of
from ludus.sandboxes.sandbox import FOLDER, UID, Kind, Label, Mount, Room

START_S = 10.0
BASE = "/dev/shm"
"""Where the init keeps the disks, in its own mount namespace."""


class NamespaceInit:
    """Our end of the socket to the program namespace_init.py; one per process, shared by all its namespaces."""

    def __init__(self, *, mark: str) -> None:
        """`mark` is the owner: should the program outlive us, stopped perhaps, the reaper finds it by that."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        owner = os.pidfd_open(os.getpid())
        as_user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        program = [sys.executable, "-I", "-S", str(Path(__file__).with_name("namespace_init.py"))]
        with theirs:
            self._process = subprocess.Popen(
                [
                    "unshare",
                    *as_user,
                    "--mount-proc",
                    "--pid",
                    "--fork",
                    "--kill-child",
                    *program,
                    str(theirs.fileno()),
                    str(owner),
                ],
                pass_fds=(theirs.fileno(), owner),
                env={"PATH": os.environ.get("PATH", os.defpath), MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for us: sessions are closed in order
            )
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
            raise SandboxFailed(
                f"namespaces cannot be made here: {cause or 'no answer'}. `ludus doctor` says what to change."
            )

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
            raise SandboxFailed(f"a namespace's disk: {answer or 'the init is gone'}")

    def spawn(self, **request: Any) -> Pipes:
        """A process whose three streams we hold. Its standard input is a socket: unlike a pipe, it cannot be opened again through /proc."""
        stdin, their_stdin = socket.socketpair()
        told, their_told = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stdout, their_stdout = os.pipe()
        stderr, their_stderr = os.pipe()
        theirs = [their_told.detach(), their_stdin.detach(), their_stdout, their_stderr]
        try:
            self._send({"do": "spawn", **request}, theirs)
        except SandboxFailed:
            for fd in (stdin.detach(), told.detach(), stdout, stderr):
                os.close(fd)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        return _pipes(told, stdin=stdin.detach(), stdout=stdout, stderr=stderr)

    def _send(self, request: dict[str, Any], fds: list[int]) -> None:
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], fds)
        except OSError as error:
            raise SandboxFailed(f"the init of this process's namespaces is gone: {error}") from error

    def close(self) -> None:
        self._socket.close()
        self._process.kill()  # --kill-child: its end is the end of everything inside
        self._process.wait()


def _pipes(told: socket.socket, *, stdin: int, stdout: int, stderr: int) -> Pipes:
    codes: list[int] = []

    def exited(timeout_s: float) -> int | None:
        if not codes and select.select([told], [], [], timeout_s)[0]:
            text = told.recv(4096).decode()
            number = text.lstrip("-").isdigit()
            codes.append(
                exit_code_of(int(text)) if number else 125 if text else 137
            )  # empty: the init is gone, and all with it
        return codes[0] if codes else None

    def end() -> None:
        with contextlib.suppress(OSError):  # it has ended
            told.shutdown(socket.SHUT_WR)

    return Pipes(stdin, stdout, stderr, done=told.fileno(), exited=exited, end=end, let_go=told.close)


class NamespaceSandbox(ContainedSandbox):
    kind: Kind = "namespace"

    def __init__(
        self,
        label: Label,
        *,
        state: Path,
        init: Callable[[], NamespaceInit],
        room: Room,
        mounts: tuple[Mount, ...],
        network: bool,
    ) -> None:
        super().__init__()
        self.label = label
        self._state, self._find_init, self._room = state, init, room
        self._wrapping = wrapping(mounts=mounts, network=network, disk=f"{BASE}/{label.id}")
        self._group: cgroups.Group | None = None
        self._init: NamespaceInit | None = None

    def start(self) -> None:
        write_label(self._state, self.label, kind=self.kind)
        self._init = self._find_init()
        trees = cgroups.find()
        try:
            self._group = cgroups.make(trees, self.label.id, self._room) if trees.places else None
        except OSError as error:
            raise SandboxFailed(f"no control group for the sandbox: {error}") from error
        self._limits = rlimits(self._room, missing=trees.missing)
        self._init.ask("open", id=self.label.id, bytes=self._room.disk_mb * 2**20, uid=_uid())

    def attach(self, argv: list[str]) -> ProcessHandle:
        self._require_open()
        assert self._init is not None, "start() comes first"
        groups = [str(folder) for folder in self._group.folders] if self._group else []
        return self._remembered(
            self._init.spawn(
                id=self.label.id, argv=[*self._wrapping, *argv], env={}, groups=groups, rlimits=self._limits, uid=_uid()
            )
        )

    def _shell_argv(self) -> list[str]:
        return ["/bin/bash", "--noprofile", "--norc"] if Path("/bin/bash").exists() else ["/bin/sh"]

    def _end(self) -> None:
        if self._init is not None:
            with contextlib.suppress(SandboxFailed, OSError):  # the init is gone, and the disk with it
                self._init.ask("remove", id=self.label.id)
        if self._group is not None:
            self._group.remove()
        drop_label(self._state, self.label.id)


def wrapping(*, mounts: tuple[Mount, ...], network: bool, disk: str) -> list[str]:
    """The command that goes before a command. The order matters: later mounts cover earlier ones."""
    bwrap = shutil.which("bwrap") or "/usr/bin/bwrap"
    words = [
        bwrap,
        "--unshare-all",
        "--unshare-user",
        "--die-with-parent",
        "--new-session",
        "--clearenv",
        "--cap-drop",
        "ALL",
    ]
    words += ["--uid", str(UID), "--gid", str(UID), "--hostname", "sandbox"]
    words += ["--share-net", "--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"] if network else []
    words += ["--disable-userns"] if can_forbid_namespaces() else []
    words += [
        word for folder in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32") for word in _system(folder)
    ]
    for path in ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl/certs"):
        words += ["--ro-bind-try", path, path]
    words += ["--proc", "/proc", "--dev", "/dev", "--size", str(8 * 2**20), "--tmpfs", "/dev/shm"]
    words += ["--bind", f"{disk}/work", FOLDER, "--bind", f"{disk}/tmp", "/tmp"]
    for mount in mounts:
        words += ["--bind" if mount.writable else "--ro-bind", mount.source, mount.target]
    words += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", FOLDER]
    for name, value in {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": FOLDER,
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
    }.items():
        words += ["--setenv", name, value]
    return [*words, "--"]


def rlimits(room: Room, *, missing: tuple[str, ...]) -> dict[str, int]:
    """Per process; memory and processes only where no control group counts them for the whole sandbox."""
    limits = {"RLIMIT_CORE": 0, "RLIMIT_NOFILE": 1024}
    if "memory" in missing:
        limits["RLIMIT_AS"] = room.memory_mb * 2**20
    if "pids" in missing:
        limits["RLIMIT_NPROC"] = room.num_processes
    return limits


@functools.cache
def can_forbid_namespaces() -> bool:
    """Bubblewrap 0.8 and newer: code inside can then make no user namespaces, a common way into the kernel."""
    told = subprocess.run(["bwrap", "--help"], capture_output=True, text=True).stdout
    return "--disable-userns" in told


def _system(folder: str) -> list[str]:
    path = Path(folder)
    if path.is_symlink():
        return ["--symlink", os.readlink(path), folder]
    return ["--ro-bind", folder, folder] if path.exists() else []


def _uid() -> int:
    """Who starts bubblewrap: never root, whose rlimits and ownership of files would count for something. As a user we are mapped, to 0."""
    return UID if os.geteuid() == 0 else 0
