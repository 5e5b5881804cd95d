import threading

import pytest
import torch

from ludus.errors import EngineFailed
from ludus.weights.folder import FolderChannel
from ludus.weights.memory import MemoryChannel


@pytest.fixture(params=["memory", "disk"])
def channel(request, tmp_path):
    return MemoryChannel(keep=2) if request.param == "memory" else FolderChannel(tmp_path / "channel", keep=2)


def make_tensors(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "embed": torch.randn(7, 5, generator=generator),
        "norm": torch.randn(5, generator=generator).bfloat16(),
        "count": torch.tensor(3),
    }


def test_what_is_fetched_is_what_was_published(channel):
    tensors = make_tensors()
    channel.publish(4, tensors)
    fetched = channel.fetch(4)
    assert fetched.keys() == tensors.keys()
    assert all(torch.equal(fetched[name], tensor) for name, tensor in tensors.items())


def test_later_changes_to_the_tensors_do_not_show(channel):
    tensors = make_tensors()
    channel.publish(1, tensors)
    tensors["embed"].zero_()
    assert torch.equal(channel.fetch(1)["embed"], make_tensors()["embed"])


def test_only_the_newest_versions_are_kept_and_an_unknown_one_names_them(channel):
    for version in range(4):
        channel.publish(version, make_tensors(version))
    with pytest.raises(EngineFailed, match=r"version 1 is not .*it holds \[2, 3\]"):
        channel.fetch(1)
    assert torch.equal(channel.fetch(2)["embed"], make_tensors(2)["embed"])


def test_a_version_can_be_published_again(channel):
    channel.publish(1, make_tensors(0))
    channel.publish(1, make_tensors(1))
    assert torch.equal(channel.fetch(1)["embed"], make_tensors(1)["embed"])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda tensor: tensor.view(torch.int32)[3, 2].bitwise_xor_(1), "tensor 'embed' of version 1 is not"),
        (lambda tensor: tensor.copy_(tensor.flip(1)), "of version 1 is not what was published"),
        (lambda tensor: tensor.copy_(tensor.flip(0)), "of version 1 is not what was published"),
    ],
)
def test_what_writes_to_a_version_in_memory_is_noticed(change, named):
    channel = MemoryChannel()
    channel.publish(1, make_tensors())
    change(channel.fetch(1)["embed"])
    with pytest.raises(EngineFailed, match=named):
        channel.fetch(1)


def test_a_flipped_bit_on_disk_is_noticed(tmp_path):
    channel = FolderChannel(tmp_path)
    channel.publish(1, make_tensors())
    path = tmp_path / "version-00000001.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(EngineFailed, match=r"has checksum \w+; expected \w+: it is damaged"):
        channel.fetch(1)


def test_a_truncated_or_lost_file_on_disk_is_named(tmp_path):
    channel = FolderChannel(tmp_path)
    channel.publish(1, make_tensors())
    path = tmp_path / "version-00000001.safetensors"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(EngineFailed, match=rf"00000001.safetensors has {size - 10} bytes; expected {size}"):
        channel.fetch(1)
    path.unlink()
    with pytest.raises(EngineFailed, match=f"is missing; expected {size} bytes"):
        channel.fetch(1)


def test_a_writer_that_died_left_no_version(tmp_path):
    (tmp_path / ".writing-1.safetensors").write_bytes(b"half")
    (tmp_path / "version-00000003.safetensors").write_bytes(b"no manifest yet")
    assert FolderChannel(tmp_path).versions() == []


def test_publishing_and_fetching_from_several_threads_never_mixes_versions():
    channel = MemoryChannel(keep=3)
    channel.publish(0, {"w": torch.zeros(100)})
    newest, seen = [0], []

    def publish():
        for version in range(1, 30):
            channel.publish(version, {"w": torch.full((100,), float(version))})
            newest[0] = version

    writer = threading.Thread(target=publish)
    writer.start()
    while writer.is_alive():
        version = newest[0]
        try:
            seen.append((version, channel.fetch(version)["w"].unique().tolist()))
        except EngineFailed:
            continue  # published over meanwhile
    writer.join()
    assert all(values == [float(version)] for version, values in seen)
