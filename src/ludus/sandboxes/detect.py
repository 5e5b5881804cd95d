"""Which sandboxes work on this machine, found by trying, with a remedy if one does not."""

from __future__ import annotations

import functools
import os
import shutil
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from ludus.errors import SandboxFailed
from ludus.sandboxes import cgroups
from ludus.sandboxes.docker_api import DockerApi, sockets
from ludus.sandboxes.namespace import BASE, NamespaceInit, bwrap, rlimits, starter_uid
from ludus.sandboxes.process_handle import gather
from ludus.sandboxes.sandbox import Kind, Limits, Room

CONF = Path(__file__).with_name("containers.conf")


@dataclass(frozen=True, slots=True)
class Driver:
    kind: Kind
    works: bool
    says: str
    remedy: str = ""


def driver(kind: Kind) -> Driver:
    if kind == "namespace":
        return _namespace()
    if kind == "container":
        return _container()
    if kind == "none":
        return Driver("none", True, "no sandbox: code runs in the worker")
    if not hasattr(os, "pidfd_open"):
        return Driver("process", False, "this system has no pidfd", "Use Linux 5.3 or newer.")
    return Driver("process", True, "plain processes for trusted code; contains nothing")


def container_socket() -> Path | None:
    """The first socket that answers."""
    return next((socket for socket in sockets() if _version(socket)), None)


@functools.cache
def _namespace() -> Driver:
    if shutil.which("bwrap") is None or shutil.which("unshare") is None:
        missing = "bubblewrap" if shutil.which("bwrap") is None else "util-linux"
        return Driver("namespace", False, f"{missing} is not installed", f"Install it: `apt-get install {missing}`.")
    try:
        problem = _try_namespace()
    except (SandboxFailed, OSError) as error:
        problem = str(error)
    if problem:
        return Driver("namespace", False, f"bubblewrap does not run here: {problem}", _namespace_remedy())
    trees = cgroups.find()
    lacking = "".join(f", no limit on {name} of the whole sandbox" for name in trees.missing)
    found = " and ".join(sorted({f"cgroup v{version}" for version, _ in trees.places.values()}))
    limits = f"limits by {found}{lacking}" if found else "no control groups: limits per process only"
    return Driver("namespace", True, f"bubblewrap; {limits}")


def _try_namespace() -> str:
    """What went wrong, or an empty string."""
    uid = starter_uid()
    with closing(NamespaceInit(mark="")) as init:
        init.ask("open", id="trial", bytes=2**20, uid=uid)
        argv = [*bwrap(mounts=(), network=False, disk=f"{BASE}/trial"), "/bin/sh", "-c", "echo ready"]
        started = init.spawn(argv=argv, groups=[], rlimits=rlimits(Room(), missing=()), uid=uid)
        done, _ = gather(started, limits=Limits(time_s=10))
    return "" if done.stdout == "ready\n" else (done.stderr.strip() or f"exit code {done.exit_code}")


def _namespace_remedy() -> str:
    settings = {"kernel.unprivileged_userns_clone": "1", "kernel.apparmor_restrict_unprivileged_userns": "0"}
    for name, good in settings.items():
        file = Path("/proc/sys") / name.replace(".", "/")
        if file.exists() and file.read_text().strip() != good:
            return f"Allow user namespaces: `sysctl -w {name}={good}`."
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        return (
            "This is a container: start it with `--privileged`, or mount a container service's socket "
            "and use the container driver."
        )
    return "Allow user, mount and pid namespaces; test with `unshare --mount --pid --fork true`."


def _container() -> Driver:
    socket = container_socket()
    if socket is not None:
        return Driver("container", True, f"{_version(socket)} at {socket}")
    found = sockets()
    if found:
        return Driver("container", False, f"no service answers at {found[0]}", "Start it, or set DOCKER_HOST.")
    if shutil.which("podman"):
        where = "/run/podman" if os.geteuid() == 0 else os.environ.get("XDG_RUNTIME_DIR", "/tmp") + "/podman"
        command = f"mkdir -p {where}; podman system service --time=0 unix://{where}/podman.sock &"
        remedy = f"Start it: `{command}` (with CONTAINERS_CONF={CONF} if crun does not work)."
        return Driver("container", False, "podman is installed, but its service does not run", remedy)
    remedy = "Install one, e.g. `apt-get install podman runc`, or set DOCKER_HOST=unix://..."
    return Driver("container", False, "neither Docker nor podman answers", remedy)


def _version(socket: Path) -> str:
    with closing(DockerApi(socket)) as api, suppress(SandboxFailed):
        return api.version()
    return ""
