"""The init process (pid 1) of the sandboxes' pid namespace. Run by namespace.py, never imported.

Promise: when the process that started it ends, in whatever way, the processes and disks of its
sandboxes are gone: they belong to namespaces that end with this program. It serves three requests
over a socket, one message each, with a socket for the answer:

    {"do": "open", "id", "bytes", "uid"}                  mounts a sized tmpfs for a sandbox
    {"do": "spawn", "argv", "groups", "rlimits", "uid"}   starts a process with three streams sent
                                                          along; its exit status is the answer
    {"do": "remove", "id"}                                unmounts the tmpfs

It uses the standard library only and one thread, so that it may fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` itself would cost 5 ms of every start
    from typing import Any

BASE = "/dev/shm"
"""Holds the disks; an empty tmpfs covers it in this mount namespace."""
NOSUID_NODEV = 2 | 4
DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


def mount_tmpfs(path: str, options: str) -> None:
    if _libc.mount(b"tmpfs", path.encode(), b"tmpfs", NOSUID_NODEV, options.encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)


def open_disk(request: dict[str, Any]) -> None:
    path, uid = f"{BASE}/{request['id']}", request["uid"]
    os.mkdir(path)
    mount_tmpfs(path, f"size={request['bytes']},mode=0755")
    for name in ("work", "tmp"):
        os.mkdir(f"{path}/{name}")
        os.chmod(f"{path}/{name}", 0o700)
        os.chown(f"{path}/{name}", uid, uid)


def remove_disk(request: dict[str, Any]) -> None:
    path = f"{BASE}/{request['id']}"
    _libc.umount2(path.encode(), DETACH)
    os.rmdir(path)


def spawn(request: dict[str, Any], streams: list[int]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.closerange(3, 65536)
        os.setsid()
        for group in request["groups"]:
            with open(f"{group}/cgroup.procs", "w") as procs:
                procs.write("0")
        for name, wanted in request["rlimits"].items():
            number = getattr(resource, name)
            hard = resource.getrlimit(number)[1]
            # raising a limit may be forbidden
            limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(number, (limit, limit))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if request["uid"] != os.getuid():
            os.setgroups([])
            os.setresgid(*[request["uid"]] * 3)
            os.setresuid(*[request["uid"]] * 3)
        os.chdir("/")
        os.execve(request["argv"][0], request["argv"], {"PATH": "/usr/bin:/bin"})
    except BaseException as error:  # a forked child must never return into the loop  # noqa: BLE001
        os.write(2, f"ludus: {error}\n".encode())
    os._exit(125)


class Init:
    """Serves requests, kills children whose caller is gone, reaps every ended process."""

    def __init__(self, requests: socket.socket, *, owner: int) -> None:
        self.requests, self.owner = requests, owner
        self.children: dict[int, socket.socket] = {}
        self.pids: dict[int, int] = {}
        """By file descriptor of the sockets in `children`."""
        self.deaths, waker = os.pipe()
        os.set_blocking(waker, False)
        os.set_blocking(self.deaths, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.poll = select.poll()
        for fd in (requests.fileno(), owner, self.deaths):
            self.poll.register(fd, select.POLLIN)

    def serve(self) -> None:
        """Runs until the owner ends (`owner` is its pidfd) or closes the socket."""
        while True:
            for fd, _ in self.poll.poll():
                if fd == self.owner or (fd == self.requests.fileno() and not self.take()):
                    return
                if fd == self.deaths:
                    os.read(self.deaths, 4096)
                    self.reap()
                elif fd in self.pids:
                    self.poll.unregister(fd)
                    os.kill(self.pids.pop(fd), signal.SIGKILL)

    def take(self) -> bool:
        data, fds, _, _ = socket.recv_fds(self.requests, 1 << 20, 8)
        if not data:
            return False
        request, answer, streams = json.loads(data), socket.socket(fileno=fds[0]), fds[1:]
        try:
            if request["do"] == "spawn":
                self.watch(spawn(request, streams), answer)
            else:
                (open_disk if request["do"] == "open" else remove_disk)(request)
                answer.send(b"ok")
        except OSError as error:
            _reply(answer, f"ludus: {error}")
        for fd in streams:
            os.close(fd)
        return True

    def watch(self, pid: int, answer: socket.socket) -> None:
        self.children[pid] = answer
        self.pids[answer.fileno()] = pid
        self.poll.register(answer.fileno(), select.POLLIN)

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            answer = self.children.pop(pid, None)
            if answer is None:
                continue  # an orphan
            if self.pids.pop(answer.fileno(), None) is not None:
                self.poll.unregister(answer.fileno())
            _reply(answer, str(os.waitstatus_to_exitcode(status)))
            answer.close()


def _reply(answer: socket.socket, text: str) -> None:
    with contextlib.suppress(OSError):  # the caller is gone
        answer.send(text.encode())


def main() -> None:
    mount_tmpfs(BASE, "size=1m,mode=0755")
    requests = socket.socket(fileno=int(sys.argv[1]))
    requests.send(b"ready")
    Init(requests, owner=int(sys.argv[2])).serve()


if __name__ == "__main__":
    main()
