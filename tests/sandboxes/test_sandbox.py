"""The seam's own rules, and the fake that ships."""

import pytest

from ludus.errors import ConfigError, SandboxFailed
from ludus.sandboxes.container import body
from ludus.sandboxes.fake import FakeSandbox, FakeSandboxes
from ludus.sandboxes.process_handle import gather
from ludus.sandboxes.provider import Sandboxes, need_of
from ludus.sandboxes.sandbox import KINDS, Finished, Label, Limits, Mount, Need, kind_of


def test_levels_go_from_the_least_contained_to_the_most():
    assert KINDS == ("none", "process", "namespace", "container")


def test_an_unknown_level_is_answered_with_the_near_one():
    with pytest.raises(ConfigError, match="Did you mean 'namespace'"):
        kind_of("namespaces")


def test_a_need_is_its_level_or_all_of_it():
    assert need_of("container", image="busybox") == Need("container", image="busybox")
    assert need_of(Need("process", network=True)) == Need("process", network=True)


def test_a_container_is_told_every_limit_and_has_no_right():
    asked = Need("container", image="i", mounts=(Mount("/data", "/data"), Mount("/out", "/out", writable=True)))
    told = body(asked, Label("h-l-1", "h-l", run="r", session="s"), home="h")
    host = told["HostConfig"]
    assert told["User"] == "65534:65534"
    assert told["Labels"] == {
        "ludus.home": "h",
        "ludus.id": "h-l-1",
        "ludus.owner": "h-l",
        "ludus.run": "r",
        "ludus.session": "s",
    }
    assert host["NetworkMode"] == "none"
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert {limit["Name"] for limit in host["Ulimits"]} == {"nofile", "nproc"}
    assert host["Memory"] == host["MemorySwap"] == 512 * 2**20
    assert (host["PidsLimit"], host["CpuQuota"], host["ReadonlyRootfs"]) == (128, 100_000, True)
    assert host["Binds"] == ["/data:/data:ro", "/out:/out:rw"]
    assert (
        body(Need("container", image="i", network=True), Label("i", "l"), home="h")["HostConfig"]["NetworkMode"]
        == "bridge"
    )


def test_a_container_without_an_image_is_refused_at_the_start(monkeypatch):
    from ludus.sandboxes import detect

    monkeypatch.setattr(detect, "driver", lambda kind: detect.Driver(kind, True, "works"))
    with pytest.raises(ConfigError, match="needs an image"):
        Sandboxes().require(Need("container"))


def test_what_this_machine_cannot_give_is_refused_with_the_doctors_line(monkeypatch):
    from ludus.sandboxes import detect

    monkeypatch.setattr(
        detect, "driver", lambda kind: detect.Driver(kind, False, "bubblewrap is not installed", "Install it.")
    )
    with pytest.raises(
        ConfigError, match=r"'namespace' does not work on this machine: bubblewrap is not installed. Install it."
    ):
        Sandboxes().require(Need("namespace"))


def test_the_fake_answers_to_order_and_remembers():
    sandbox = FakeSandbox(answers={"ls": "a\nb\n", "false": Finished(1, stderr="no")})
    assert sandbox.run("ls").stdout == "a\nb\n"
    assert sandbox.run(["false"]).stderr == "no"
    assert sandbox.shell().run("anything").ok
    assert sandbox.commands == ["ls", "false", "anything"]
    assert sandbox.run("ls", limits=Limits(output_bytes=2)).truncated
    assert sandbox.run("a\0b").exit_code == 126


def test_a_process_of_the_fake_says_what_was_ordered_and_ends():
    running = FakeSandbox(answers={"serve": Finished(3, stdout="out", stderr="err")}).attach(["serve"])
    running.send(b"in", timeout_s=1)
    assert running.sent == b"in"
    assert gather(running, limits=Limits()) == (Finished(3, stdout="out", stderr="err"), b"out")


def test_the_fakes_files_stay_inside():
    sandbox = FakeSandbox()
    sandbox.write("a/b", "text")
    assert sandbox.read("/a/./b") == b"text"
    with pytest.raises(FileNotFoundError):
        sandbox.read("b")
    with pytest.raises(PermissionError):
        sandbox.write("a/../../out", "x")
    with pytest.raises(ValueError, match="NUL"):
        sandbox.read("a\0")


def test_the_fake_dies_to_order_and_is_of_no_use_when_closed():
    sandbox = FakeSandbox(dies_after=1)
    sandbox.run("one")
    with pytest.raises(SandboxFailed):
        sandbox.run("two")
    sandbox.close()
    with pytest.raises(SandboxFailed, match="closed"):
        sandbox.read("x")


def test_the_fake_provider_remembers_what_was_asked_for():
    sandboxes = FakeSandboxes()
    sandboxes.open(Need("namespace"), session="s")
    sandboxes.close()
    ((need, session, sandbox),) = sandboxes.opened
    assert (need.kind, session, sandbox.num_closed) == ("namespace", "s", 1)
    with pytest.raises(SandboxFailed):
        FakeSandboxes(fails=True).open(Need("namespace"))
