"""Control groups as kernels describe them, and the ones of this machine."""

import os

import pytest

from ludus.sandboxes import cgroups
from ludus.sandboxes.sandbox import Room

V1 = "33 24 0:28 / {root}/memory rw - cgroup cgroup rw,memory\n34 24 0:29 / {root}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
V2 = "42 24 0:35 {inside} {root}/unified rw - cgroup2 cgroup2 rw\n"
OTHER = "25 1 0:22 / /proc rw shared:13 - proc proc rw\n"


@pytest.fixture
def root(tmp_path):
    for folder in ("memory/mine", "cpu", "unified/mine/deep"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "unified/cgroup.controllers").write_text("memory pids cpu io\n")
    return tmp_path


def found(root, mountinfo, membership):
    return cgroups.mounted(mountinfo.format(root=root, inside="/"), membership)


def test_version_2_is_one_tree_for_all(root):
    mounted = found(root, OTHER + V2, "0::/mine/deep\n")
    assert mounted == cgroups.Mounted(root / "unified", root / "unified/mine/deep")
    assert set(mounted.controllers) == {"memory", "pids", "cpu"}


def test_of_a_mixed_system_only_version_2_is_used(root):
    assert found(root, V1 + V2, "4:memory:/mine\n0::/\n").own == root / "unified"
    assert found(root, V1, "4:memory:/mine\n") is None


def test_in_a_container_the_mount_shows_a_part_of_the_tree(root):
    mounted = cgroups.mounted(V2.format(root=root, inside="/docker/abc"), "0::/docker/abc/mine\n")
    assert mounted.own == root / "unified/mine"
    mounted = cgroups.mounted(V2.format(root=root, inside="/docker/abc"), "0::/somewhere/else\n")
    assert mounted.own == root / "unified"


def test_every_limit_is_written(tmp_path):
    room = Room(memory_mb=64, num_processes=40, cpus=0.5)
    group = cgroups.make(cgroups.Parent(tmp_path, cgroups.NEEDED), "one", room)
    written = {file.name: file.read_text() for file in group.folder.iterdir()}
    assert written == {"memory.max": str(64 * 2**20), "pids.max": "40", "cpu.max": "50000 100000"}


def test_a_controller_that_is_not_there_is_named(tmp_path):
    assert cgroups.Parent().missing == cgroups.NEEDED
    assert cgroups.Parent(tmp_path, ("memory", "cpu")).missing == ("pids",)


def test_a_group_of_this_machine_is_made_limited_and_removed():
    parent = cgroups.find()
    if parent.folder is None:
        pytest.skip("this process may make no control groups")
    group = cgroups.make(parent, f"test-group-{os.getpid()}", Room(num_processes=7))
    assert group.folder.is_dir()
    if "pids" in parent.controllers:
        assert (group.folder / "pids.max").read_text().strip() == "7"
    assert group.remove()
    assert not group.folder.exists()
    assert group.remove(), "twice is fine"
