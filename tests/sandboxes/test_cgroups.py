"""Control groups of version 1, 2 and mixed, as kernels tell of them, and the ones of this machine."""

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
    return list(cgroups.mounts(mountinfo.format(root=root, inside="/"), membership))


def test_each_controller_of_version_1_has_its_tree(root):
    mounts = found(root, OTHER + V1, "4:memory:/mine\n1:cpu,cpuacct:/\n")
    assert [(each.version, set(each.controllers), each.own) for each in mounts] == [
        (1, {"memory"}, root / "memory/mine"),
        (1, {"cpu"}, root / "cpu"),
    ]


def test_version_2_is_one_tree_for_all(root):
    (only,) = found(root, OTHER + V2, "0::/mine/deep\n")
    assert (only.version, only.own) == (2, root / "unified/mine/deep")
    assert {"memory", "pids", "cpu"} <= only.controllers


def test_a_mixed_system_has_both(root):
    assert {each.version for each in found(root, V1 + V2, "4:memory:/mine\n0::/\n")} == {1, 2}


def test_in_a_container_the_mount_shows_a_part_of_the_tree(root):
    mounts = cgroups.mounts(V2.format(root=root, inside="/docker/abc"), "0::/docker/abc/mine\n")
    assert [each.own for each in mounts] == [root / "unified/mine"]
    mounts = cgroups.mounts(V2.format(root=root, inside="/docker/abc"), "0::/somewhere/else\n")
    assert [each.own for each in mounts] == [root / "unified"]


@pytest.mark.parametrize("version", [1, 2])
def test_every_limit_is_written(version):
    room = Room(memory_mb=64, num_processes=40, cpus=0.5)
    written = dict(each for name in cgroups.NEEDED for each in cgroups.settings(name, version, room))
    assert str(64 * 2**20) in written.values()
    assert written["pids.max"] == "40"
    assert any("50000" in value for value in written.values())


def test_a_group_of_this_machine_is_made_limited_and_removed():
    trees = cgroups.find()
    if not trees.places:
        pytest.skip("this process may make no control groups")
    name = f"test-group-{os.getpid()}"
    group = cgroups.make(trees, name, Room(num_processes=7))
    assert all(folder.is_dir() for folder in group.folders)
    if "pids" in trees.places:
        assert (trees.places["pids"][1] / name / "pids.max").read_text().strip() == "7"
    assert group.remove()
    assert not any(folder.exists() for folder in group.folders)
    assert group.remove(), "twice is fine"
