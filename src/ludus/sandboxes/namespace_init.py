"""The program that namespaces hang on: pid 1 of a pid namespace, in a mount namespace of its own. Run by namespace.py, never imported.

Promise: when the process that started it dies, however it dies, everything in its sandboxes dies, and their disks are gone: they are
mounts and processes of namespaces that end with this program. It does only three things, asked for over a socket, one message each, with an
answering socket passed along:

    {"do": "open", "id", "bytes"}                     a sized tmpfs for a sandbox
    {"do": "spawn", "id", "argv", "groups", "rlimits", "uid"}   a process with the three streams passed along; its end is told on its socket
    {"do": "remove", "id"}                            unmounts

It runs with the standard library alone, in one thread, so that it may fork.
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys

BASE = "/dev/shm"
"""Covered by an empty tmpfs, in this mount namespace only."""
NOSUID_NODEV = 2 | 4
DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


def mount_tmpfs(path: str, options: str) -> None:
    if _libc.mount(b"tmpfs", path.encode(), b"tmpfs", NOSUID_NODEV, options.encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)


def open_disk(request: dict) -> None:
    path, uid = f"{BASE}/{request['id']}", request["uid"]
    os.mkdir(path)
    mount_tmpfs(path, f"size={request['bytes']},mode=0755")
    for name in ("work", "tmp"):
        os.mkdir(f"{path}/{name}")
        os.chmod(f"{path}/{name}", 0o700)
        os.chown(f"{path}/{name}", uid, uid)


def remove_disk(request: dict) -> None:
    path = f"{BASE}/{request['id']}"
    _libc.umount2(path.encode(), DETACH)
    os.rmdir(path)


def spawn(request: dict, streams: list[int]) -> int:
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
        for name, value in request["rlimits"].items():
            number = getattr(resource, name)
            hard = resource.getrlimit(number)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)  # raising one may be forbidden
            resource.setrlimit(number, (value, value))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if request["uid"] != os.getuid():
            os.setgroups([])
            os.setresgid(*[request["uid"]] * 3)
            os.setresuid(*[request["uid"]] * 3)
        os.chdir("/")
        os.execve(request["argv"][0], request["argv"], {"PATH": "/usr/bin:/bin", **request["env"]})
    except BaseException as error:
        os.write(2, f"ludus: {error}\n".encode())
    os._exit(125)


class Init:
    """One loop over three kinds of news: a request, a child nobody wants any more, an end (also an orphan's, which pid 1 has to bury)."""

    def __init__(self, requests: socket.socket, *, owner: int) -> None:
        self.requests, self.owner = requests, owner
        self.children: dict[int, socket.socket] = {}
        self.pids: dict[int, int] = {}
        """Of the sockets in `children`."""
        self.deaths, waker = os.pipe()
        os.set_blocking(waker, False)
        os.set_blocking(self.deaths, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.poll = select.poll()
        for fd in (requests.fileno(), owner, self.deaths):
            self.poll.register(fd, select.POLLIN)

    def serve(self) -> None:
        """Until the owner is gone: its process (`owner` is a pidfd), or its end of the socket."""
        while True:
            for fd, _ in self.poll.poll():
                if fd == self.owner or (fd == self.requests.fileno() and not self.take()):
                    return
                if fd == self.deaths:
                    os.read(self.deaths, 4096)
                    self.bury()
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
            _tell(answer, f"ludus: {error}")
        for fd in streams:
            os.close(fd)
        return True

    def watch(self, pid: int, answer: socket.socket) -> None:
        self.children[pid] = answer
        self.pids[answer.fileno()] = pid
        self.poll.register(answer.fileno(), select.POLLIN)

    def bury(self) -> None:
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
            _tell(answer, str(os.waitstatus_to_exitcode(status)))
            answer.close()


def _tell(answer: socket.socket, text: str) -> None:
    with contextlib.suppress(OSError):  # the asker is gone
        answer.send(text.encode())


def main() -> None:
    mount_tmpfs(BASE, "size=1m,mode=0755")
    requests = socket.socket(fileno=int(sys.argv[1]))
    requests.send(b"ready")
    Init(requests, owner=int(sys.argv[2])).serve()


if __name__ == "__main__":
    main()
