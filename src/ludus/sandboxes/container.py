"""The container sandbox, through any Docker-compatible service. Promise: no privileges, no network
unless asked for, and no limit left to the service's defaults.

Files outside /work and /tmp are the image's, read-only. The container's first process kills all
others when it gets SIGUSR1; that starts no new process, so it works in a full container too. A
command that exceeds its time thus takes along everything in its container; shells start anew. An
exec costs 0.1 s, a command in a persistent shell well below 1 ms.
"""

from __future__ import annotations

import resource
from dataclasses import asdict
from pathlib import Path

from ludus.errors import SandboxFailed
from ludus.sandboxes.base import ContainedSandbox
from ludus.sandboxes.docker_api import DockerApi, Exec
from ludus.sandboxes.owner import home_of
from ludus.sandboxes.process_handle import ProcessHandle
from ludus.sandboxes.sandbox import FOLDER, UID, Kind, Label, Need

FIRST_PROCESS = "trap 'kill -KILL -1' USR1; trap 'exit 0' TERM; while :; do sleep 86400 & wait $!; done"
BEGIN = ["/bin/sh", "-c", "printf '\\006'; exec \"$@\"", "sh"]
"""Runs before a command and reports its start, which services do differently or not at all."""
START_S = 20.0
USER = f"{UID}:{UID}"


class ContainerSandbox(ContainedSandbox):
    kind: Kind = "container"

    def __init__(self, label: Label, *, state: Path, api: DockerApi, need: Need) -> None:
        super().__init__(label, state=state)
        if not need.image:
            raise SandboxFailed("a container needs an image; set `image` in the environment's class or in the run file")
        self._api, self._need = api, need
        self._container = ""

    def start(self) -> None:
        super().start()
        name = f"ludus-{self.label.id}"
        self._container = self._api.create(name, body(self._need, self.label, home=home_of(self._state)))
        self._api.start(self._container)

    def attach(self, argv: list[str]) -> ProcessHandle:
        """Ends everything first if the container is too full to start one more process."""
        self._require_open()
        problem = ""
        for full in (False, True):
            if full:
                self.end_all()
            started = self._api.exec(self._container, [*BEGIN, *argv], user=USER, folder=FOLDER)
            problem = _begun(started)
            if not problem:
                return self._remembered(InContainer(started, sandbox=self))
            started.close()
        raise SandboxFailed(f"no command can be started in the container: {problem}")

    def end_all(self) -> None:
        """Kills everything but the first process; removes the container if that fails."""
        try:
            self._api.kill(self._container, signal="SIGUSR1")
        except SandboxFailed:
            self._api.remove(self._container)

    def _end(self) -> None:
        if self._container:
            self._api.remove(self._container)


def _begun(started: Exec) -> str:
    """What went wrong, or an empty string."""
    output = b""
    while (event := started.receive(START_S)) is not None and event[0]:
        stream, data = event
        if stream == 1 and data.startswith(b"\x06"):
            started.unread(data[1:])
            return ""
        output += data
    return output.decode(errors="replace").strip()[:300] or "no answer"


class InContainer:
    """An exec that is killed with everything else in its container."""

    def __init__(self, started: Exec, *, sandbox: ContainerSandbox) -> None:
        self.send, self.receive, self.exit_code = started.send, started.receive, started.exit_code
        self.kill, self.close = sandbox.end_all, started.close


def body(need: Need, label: Label, *, home: str) -> dict[str, object]:
    """Leaves nothing to defaults, which differ between services and machines."""
    room, disk = need.room, need.room.disk_mb * 2**20
    memory = room.memory_mb * 2**20
    tmpfs = "rw,nosuid,nodev,exec,size={},mode=1777"  # mode: if the image has no such folder
    return {
        "Image": need.image,
        "Entrypoint": ["/bin/sh", "-c", FIRST_PROCESS],
        "Cmd": [],
        "User": USER,
        "WorkingDir": FOLDER,
        "Hostname": "sandbox",
        "Env": [f"HOME={FOLDER}", "LANG=C.UTF-8", "TMPDIR=/tmp"],
        "Labels": {"ludus.home": home, **{f"ludus.{key}": value for key, value in asdict(label).items()}},
        "HostConfig": {
            "NetworkMode": "bridge" if need.network else "none",
            "Memory": memory,
            "MemorySwap": memory,
            "PidsLimit": room.num_processes,
            "CpuPeriod": 100_000,
            "CpuQuota": int(room.cpus * 100_000),
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "Ulimits": ulimits(),
            "ReadonlyRootfs": True,
            "Tmpfs": {
                FOLDER: tmpfs.format(disk // 2),
                "/tmp": tmpfs.format(disk // 2),
                "/run": tmpfs.format(2**20),
                "/var/tmp": tmpfs.format(2**20),
            },
            "ShmSize": 8 * 2**20,
            "Binds": [f"{m.source}:{m.target}:{'rw' if m.writable else 'ro'}" for m in need.mounts],
            "Privileged": False,
            "AutoRemove": False,
        },
    }


def ulimits() -> list[dict[str, object]]:
    """Both are set, because podman adds missing ones with values that this machine may refuse.
    nproc is wide: it counts the processes of all containers together; PidsLimit limits one
    container."""
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    nproc = 30_000 if hard == resource.RLIM_INFINITY else min(hard, 30_000)
    return [{"Name": "nofile", "Soft": 1024, "Hard": 1024}, {"Name": "nproc", "Soft": nproc, "Hard": nproc}]
