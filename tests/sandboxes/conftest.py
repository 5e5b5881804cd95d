"""Real sandboxes of every driver that this machine has; the tests of the others are skipped and say why."""

from __future__ import annotations

import io
import os
import secrets
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ludus.sandboxes import detect
from ludus.sandboxes.docker_api import DockerApi
from ludus.sandboxes.provider import Sandboxes
from ludus.sandboxes.sandbox import Kind, Need, Room

IMAGE = "localhost/ludus-busybox:latest"
ROOM = Room(memory_mb=64, num_processes=40, cpus=1.0, disk_mb=16)
BUSYBOX = next((path for path in ("/bin/busybox", "/usr/bin/busybox") if Path(path).exists()), "")


@pytest.fixture(scope="session")
def container_service() -> Iterator[Path]:
    """A podman service of our own, with the settings we ship and an image that needs no registry."""
    if os.environ.get("DOCKER_HOST"):
        pytest.skip("DOCKER_HOST is set: these tests use a service of their own only")
    for program in ("podman", "runc"):
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None:
            pytest.skip(f"{program} is not installed: `apt-get install podman runc busybox-static`")
    if not BUSYBOX:
        pytest.skip("no busybox to make an image of: `apt-get install busybox-static`")
    folder = Path(tempfile.mkdtemp(prefix="ludus-", dir="/tmp"))  # podman takes no run folder above 50 characters
    socket = folder / "socket"
    environment = {**os.environ, "CONTAINERS_CONF": str(detect.CONF), "TMPDIR": str(folder)}
    command = ["podman", "--root", f"{folder}/root", "--runroot", f"{folder}/runroot", "--storage-driver", "vfs"]
    with (folder / "log").open("w") as log:
        service = subprocess.Popen(
            [*command, "system", "service", "--time=0", f"unix://{socket}"],
            env=environment, stdout=log, stderr=log, start_new_session=True, cwd=folder,  # where conmon leaves a file "oom"
        )  # fmt: skip
    try:
        if (
            not wait_for(lambda: socket.is_socket() or service.poll() is not None, patience_s=60)
            or service.poll() is not None
        ):
            pytest.skip(f"podman's service does not start here: {(folder / 'log').read_text().strip()[-300:]}")
        import_image(socket)
        yield socket
    finally:
        end_service(service, socket)
        shutil.rmtree(folder, ignore_errors=True)


def end_service(service: subprocess.Popen, socket: Path) -> None:
    """With its containers, also those of a test that failed: they would keep mounts in our folder."""
    if service.poll() is None and socket.is_socket():
        api = DockerApi(socket)
        for found in api.containers("ludus.id"):
            api.remove(found["Id"])
        api.close()
    service.kill()
    service.wait()


def import_image(socket: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tree:
        for name, mode in (("bin", 0o755), ("tmp", 0o1777), ("etc", 0o755)):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, mode
            tree.addfile(folder)
        tree.add(os.path.realpath(BUSYBOX), "bin/busybox")
        for applet in subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True).stdout.split():
            if applet != "busybox":
                link = tarfile.TarInfo(f"bin/{applet}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tree.addfile(link)
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), timeout=60) as client:
        repository, _, tag = IMAGE.rpartition(":")
        answer = client.post(
            "http://docker/images/create",
            params={"fromSrc": "-", "repo": repository, "tag": tag},
            headers={"Content-Type": "application/x-tar"},
            content=buffer.getvalue(),
        )
        assert answer.status_code == 200, answer.text


def wait_for(fact, *, patience_s: float = 60.0) -> bool:
    until_s = time.monotonic() + patience_s
    while time.monotonic() < until_s:
        if fact():
            return True
        time.sleep(0.01)
    return bool(fact())


def new_marker() -> str:
    """So many seconds does nobody else sleep, neither in another test nor in another run of them."""
    return str(10**8 + secrets.randbelow(10**8))


def sleeping(marker: str) -> list[int]:
    """Processes of this machine that sleep for so long; those of every namespace and container are among them."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if marker.encode() in words and b"sleep" in words:
            found.append(int(pid))
    return found


@pytest.fixture(scope="module", autouse=True)
def _docker_host() -> Iterator[None]:
    """What `need` sets is unset after each file: other tests of this process would find our service."""
    before = os.environ.get("DOCKER_HOST")
    yield
    os.environ.pop("DOCKER_HOST", None)
    if before is not None:
        os.environ["DOCKER_HOST"] = before


def make_state(folder: Path) -> Path:
    state = folder / "state"
    state.mkdir(exist_ok=True)
    return state


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandboxes]:
    sandboxes = Sandboxes(run="test", state=make_state(tmp_path_factory.mktemp("provider")), warm=0)
    yield sandboxes
    sandboxes.close()


def need(kind: Kind, request: pytest.FixtureRequest) -> Need:
    """What a test asks for, once this machine is known to have it."""
    if kind == "container":
        os.environ["DOCKER_HOST"] = f"unix://{request.getfixturevalue('container_service')}"
    driver = detect.driver(kind)
    if not driver.works:
        pytest.skip(f"{driver.says}. {driver.remedy}")
    return Need(kind, image=IMAGE if kind == "container" else "", room=ROOM)


@pytest.fixture(scope="module")
def sandbox(request: pytest.FixtureRequest, provider: Sandboxes):
    """Of the kind that the test is parametrised with; one for the tests of a file, for starting a container takes a while."""
    opened = provider.open(need(request.param, request), session="s1")
    yield opened
    opened.close()


@pytest.fixture
def own_sandbox(request: pytest.FixtureRequest, provider: Sandboxes):
    """For a test that leaves nothing of it."""
    opened = provider.open(need(request.param, request), session="s2")
    yield opened
    opened.close()


def on(*kinds: Kind, fixture: str = "sandbox"):
    return pytest.mark.parametrize(fixture, kinds, indirect=True)
