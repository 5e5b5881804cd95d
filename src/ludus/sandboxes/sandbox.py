"""The Sandbox seam. Promise: whatever a command does, `run` answers, within its limits, with what can be told about it.

    with sandboxes.open("namespace", session="s1") as sandbox:
        sandbox.write("main.py", "print(6 * 7)")
        sandbox.run("python3 main.py").stdout          # "42\n"
        shell = sandbox.shell()                        # one long-lived shell: cd, variables and functions stay
        shell.run("cd /tmp; x=1"); shell.run("pwd; echo $x")

Calls block, like those of a file: plain methods of an environment run on threads anyway, async ones say `asyncio.to_thread`.
Commands never raise for what they do. `write` and `read` raise OSError for paths that cannot be, as open() does; SandboxFailed means
that the sandbox itself is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, get_args

from ludus.config import SandboxKind
from ludus.errors import ConfigError, nearest

if TYPE_CHECKING:
    from ludus.sandboxes.process_handle import ProcessHandle

Kind = SandboxKind
KINDS: tuple[Kind, ...] = get_args(SandboxKind)
"""From the least contained to the most."""
FOLDER = "/work"
"""A namespace's or container's own folder: where commands start and relative paths begin."""
UID = 65534
"""Who untrusted code is: nobody."""
MAX_COMMAND_BYTES = 100_000
"""Linux takes no argument above 128 KiB."""
MAX_FILE_BYTES = 16 * 2**20
Command = str | Sequence[str]
"""Text for a shell, or the words of one command."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one command."""

    time_s: float = 30.0
    """Wall clock; then it is killed, with everything it started."""
    output_bytes: int = 64 * 1024
    """Kept of each of stdout and stderr; the rest is cut."""


@dataclass(frozen=True, slots=True)
class Room:
    """Of a sandbox as a whole, fixed when it starts."""

    memory_mb: int = 512
    num_processes: int = 128
    cpus: float = 1.0
    disk_mb: int = 64
    """Of its own folder and its /tmp together. What lies there counts as memory too."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of this machine, seen inside."""

    source: str
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Need:
    """What an environment asks for. `sandbox = "namespace"` is short for Need("namespace")."""

    kind: Kind
    image: str = ""
    """Of a container; it must hold /bin/sh."""
    room: Room = Room()
    mounts: tuple[Mount, ...] = ()
    network: bool = False


@dataclass(frozen=True, slots=True)
class Finished:
    """What can be told about a command. `exit_code` is 128 + N where signal N ended it (137: killed, also for lack of memory)."""

    exit_code: int
    stdout: str = ""
    stderr: str = ""
    truncated: bool = False
    """Output was cut."""
    timed_out: bool = False
    restarted: bool = False
    """Of a persistent shell: it ended with this command; the next one meets a fresh shell."""

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


@dataclass(frozen=True, slots=True)
class Label:
    """Carried by every sandbox, so that one that nobody owns can be found and removed."""

    id: str
    owner: str
    """Of the process that started it; it lives as long as that process."""
    run: str = ""
    session: str = ""


class Shell(Protocol):
    def run(self, command: str, *, limits: Limits = ...) -> Finished:
        """Runs in the shell itself: `cd` and variables stay. A command out of time ends the shell, and the next one starts a new one."""
        ...

    def close(self) -> None: ...


class Sandbox(Protocol):
    @property
    def kind(self) -> Kind: ...

    def start(self) -> None: ...

    def run(self, command: Command, *, limits: Limits = ...) -> Finished:
        """A process of its own. Nothing that it started outlives it, its exit code is the system's word and cannot be forged."""
        ...

    def shell(self) -> Shell: ...

    def attach(self, argv: list[str]) -> ProcessHandle:
        """A process whose streams the caller holds, e.g. a tool server."""
        ...

    def write(self, path: str, data: bytes | str) -> None:
        """Makes the folders on the way."""
        ...

    def read(self, path: str, *, max_bytes: int = ...) -> bytes: ...

    def close(self) -> None:
        """Ends everything inside; safe to call twice, from any thread, also while a command runs, which then ends."""
        ...


def kind_of(name: str) -> Kind:
    for kind in KINDS:
        if kind == name:
            return kind
    raise ConfigError(f"sandbox is {name!r}; known: {', '.join(KINDS)}.{nearest(name, KINDS)}")


def refusal(command: Command) -> Finished | None:
    """The answer to a command that no system could start: a model may well have written it, so it is an answer and no exception."""
    words = [command] if isinstance(command, str) else list(command)
    if not words:
        return Finished(126, stderr="ludus: an empty command\n")
    if any("\0" in word for word in words):
        return Finished(126, stderr="ludus: a command cannot hold a NUL character\n")
    longest = max(len(encoded(word)) for word in words)
    if longest > MAX_COMMAND_BYTES:
        return Finished(
            126,
            stderr=f"ludus: a command of {longest} bytes; at most {MAX_COMMAND_BYTES}. Write a file and run that.\n",
        )
    return None


def argv_of(command: Command, *, shell: str = "/bin/sh") -> list[str]:
    words = [shell, "-c", command] if isinstance(command, str) else command
    return [decoded(encoded(word)) for word in words]


def checked_path(path: str) -> str:
    if not path or "\0" in path:
        raise ValueError(f"{path!r} is no path: expected a name without NUL characters")
    return path


def encoded(text: str) -> bytes:
    """Half a surrogate pair, which a model can well produce, becomes a question mark."""
    return text.encode("utf-8", "replace")


def decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")
