"""The Sandbox protocol. Promise: whatever a command does, `run` returns a result within its limits.

    with sandboxes.open("namespace", session="s1") as sandbox:
        sandbox.write("main.py", "print(6 * 7)")
        sandbox.run("python3 main.py").stdout   # "42\n"
        shell = sandbox.shell()       # a long-lived shell: cd and variables stay
        shell.run("cd /tmp; x=1"); shell.run("pwd; echo $x")

Calls block; an async method of an environment uses `asyncio.to_thread`. A command never raises.
`write` and `read` raise OSError as open() does. SandboxFailed means that the sandbox itself is
gone.
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
"""Working folder in a namespace or container."""
UID = 65534
"""User id of untrusted code (nobody)."""
MAX_COMMAND_BYTES = 100_000
"""Below Linux's limit of 128 KiB per argument."""
MAX_FILE_BYTES = 16 * 2**20
Command = str | Sequence[str]
"""Text for a shell, or the arguments of one command."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one command."""

    time_s: float = 30.0
    """Wall-clock seconds before it is killed, with everything it started."""
    output_bytes: int = 64 * 1024
    """Bytes kept of stdout and of stderr."""


@dataclass(frozen=True, slots=True)
class Room:
    """Resources of a whole sandbox, fixed when it starts."""

    memory_mb: int = 512
    num_processes: int = 128
    cpus: float = 1.0
    disk_mb: int = 64
    """Its own folder and /tmp together. Files there count as memory too."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of this machine, visible inside."""

    source: str
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Need:
    """What an environment asks for. `sandbox = "namespace"` is short for Need("namespace")."""

    kind: Kind
    image: str = ""
    """Container image; it must contain /bin/sh."""
    room: Room = Room()
    mounts: tuple[Mount, ...] = ()
    network: bool = False


@dataclass(frozen=True, slots=True)
class Finished:
    """Result of a command. `exit_code` is 128 + N if signal N ended it (137: killed)."""

    exit_code: int
    stdout: str = ""
    stderr: str = ""
    truncated: bool = False
    """Output was cut."""
    timed_out: bool = False
    restarted: bool = False
    """The persistent shell ended with this command; the next command gets a new shell."""

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


@dataclass(frozen=True, slots=True)
class Label:
    """Identifies a sandbox, so that one without a live owner can be found and removed."""

    id: str
    owner: str
    """Id of the owner: the process that started it."""
    run: str = ""
    session: str = ""


class Shell(Protocol):
    def run(self, command: str, *, limits: Limits = ...) -> Finished:
        """Runs in the shell itself: `cd` and variables stay. A timeout ends the shell."""
        ...

    def close(self) -> None: ...


class Sandbox(Protocol):
    @property
    def kind(self) -> Kind: ...

    def start(self) -> None: ...

    def run(self, command: Command, *, limits: Limits = ...) -> Finished:
        """Runs a process, and kills what it leaves. The exit code cannot be forged."""
        ...

    def shell(self) -> Shell: ...

    def attach(self, argv: list[str]) -> ProcessHandle:
        """Starts a process whose streams the caller holds, e.g. a tool server."""
        ...

    def write(self, path: str, data: bytes | str) -> None:
        """Creates missing parent folders."""
        ...

    def read(self, path: str, *, max_bytes: int = ...) -> bytes: ...

    def close(self) -> None:
        """Ends everything inside. Idempotent; from any thread, also while a command runs."""
        ...


def kind_of(name: str) -> Kind:
    for kind in KINDS:
        if kind == name:
            return kind
    raise ConfigError(f"sandbox is {name!r}; known: {', '.join(KINDS)}.{nearest(name, KINDS)}")


def refusal(command: Command) -> Finished | None:
    """The result of a command that cannot be started, else None."""
    words = [command] if isinstance(command, str) else list(command)
    if not words:
        return Finished(126, stderr="ludus: an empty command\n")
    if any("\0" in word for word in words):
        return Finished(126, stderr="ludus: a command cannot hold a NUL character\n")
    longest = max(len(encoded(word)) for word in words)
    if longest <= MAX_COMMAND_BYTES:
        return None
    limit = f"at most {MAX_COMMAND_BYTES}. Write a file and run that."
    return Finished(126, stderr=f"ludus: a command of {longest} bytes; {limit}\n")


def argv_of(command: Command, *, shell: str = "/bin/sh") -> list[str]:
    words = [shell, "-c", command] if isinstance(command, str) else command
    return [decoded(encoded(word)) for word in words]


def checked_path(path: str) -> str:
    if not path or "\0" in path:
        raise ValueError(f"path is {path!r}; expected a name without NUL characters")
    return path


def encoded(text: str) -> bytes:
    """A lone surrogate, which a model can produce, becomes a question mark."""
    return text.encode("utf-8", "replace")


def decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")
