import json
import resource

import pytest
import torch

from ludus.errors import CheckpointFailed
from ludus.trainer.checkpoint import checkpoint_folder, latest_checkpoint, load_checkpoint, save_checkpoint
from tests.trainer.examples import make_batch, make_model, make_trainer, same, weights_of


def save(run_folder, step, *, keep=5, value=None, size=10):
    value = float(step) if value is None else value
    folder = checkpoint_folder(run_folder, step)
    tensors = {"model": {"w": torch.full((size,), value)}}
    save_checkpoint(folder, tensors=tensors, state={"step": step}, keep=keep)
    return folder


def test_a_checkpoint_gives_back_tensors_and_state(tmp_path):
    checkpoint = load_checkpoint(save(tmp_path, 7))
    assert checkpoint.state == {"step": 7}
    assert torch.equal(checkpoint.tensors("model")["w"], torch.full((10,), 7.0))


def test_the_newest_are_kept(tmp_path):
    for step in (9, 10, 100, 20):
        save(tmp_path, step, keep=2)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-00000020", "step-00000100"]


def test_saving_a_step_again_replaces_it(tmp_path):
    save(tmp_path, 3, value=1.0)
    folder = save(tmp_path, 3, value=2.0)
    assert load_checkpoint(folder).tensors("model")["w"][0] == 2
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [folder.name]


# ------------------------------------------------------------------------------------------------ damage


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["model.safetensors", "state.json"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, r"has \d+ bytes; expected \d+ bytes"),
        (flip, r"has checksum \w+; expected \w+"),
        (lambda path: path.unlink(), r"is missing; expected \d+ bytes"),
    ],
)
def test_a_damaged_file_is_named_with_what_was_expected_and_what_to_do(tmp_path, name, damage, message):
    folder = save(tmp_path, 1)
    damage(folder / name)
    with pytest.raises(CheckpointFailed, match=rf"{name} {message}.*Resume from another checkpoint"):
        load_checkpoint(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"files": {"model.safetensors": {}}}'])
def test_a_broken_manifest_is_named(tmp_path, content):
    folder = save(tmp_path, 1)
    (folder / "manifest.json").write_text(content)
    with pytest.raises(CheckpointFailed, match=r"manifest\.json cannot be read"):
        load_checkpoint(folder)


def test_a_folder_that_is_no_checkpoint_is_named(tmp_path):
    with pytest.raises(CheckpointFailed, match="expected the manifest of a checkpoint"):
        load_checkpoint(tmp_path / "nowhere")


def test_the_newest_whole_checkpoint_is_found_and_broken_ones_are_warned_about(tmp_path):
    assert latest_checkpoint(tmp_path) is None
    whole = save(tmp_path, 9)
    flip(save(tmp_path, 10) / "model.safetensors")
    (tmp_path / "checkpoints" / ".writing-step-00000011").mkdir()  # a process died while it wrote
    (tmp_path / "checkpoints" / "step-notes").mkdir()
    with pytest.warns(UserWarning, match=r"skipped a broken checkpoint: .*step-00000010"):
        assert latest_checkpoint(tmp_path) == whole


def test_a_checkpoint_that_was_being_replaced_when_the_process_died_still_counts(tmp_path):
    save(tmp_path, 4)
    newest = save(tmp_path, 5)
    replaced = newest.rename(newest.with_name(f"{newest.name}.replaced"))
    assert latest_checkpoint(tmp_path) == replaced


def test_a_full_disk_fails_clearly_and_leaves_the_earlier_checkpoint_alone(tmp_path):
    earlier = save(tmp_path, 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(CheckpointFailed, match=r"step-00000002 could not be written: .*free some space"):
            save(tmp_path, 2, size=100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert latest_checkpoint(tmp_path) == earlier
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [earlier.name]


# ------------------------------------------------------------------------------------------------ the trainer's


def test_a_restored_trainer_continues_bit_for_bit(tmp_path):
    knobs = {"warmup_steps": 5, "weight_decay": 0.1, "microbatch_tokens": 40}
    straight, first = make_trainer(**knobs), make_trainer(**knobs)
    for step in range(6):
        straight.step(make_batch(step))
    for step in range(3):
        first.step(make_batch(step))
    first.publish()
    folder = first.save(tmp_path, state={"feed": {"cursor": 12}}, keep=2)
    noise = torch.rand(3)

    resumed = make_trainer(make_model(seed=99), **knobs)
    checkpoint = resumed.restore(folder)
    assert torch.equal(torch.rand(3), noise)
    assert checkpoint.state["feed"] == {"cursor": 12}
    assert (resumed.steps, resumed.version) == (3, 3)
    metrics = [resumed.step(make_batch(step)) for step in range(3, 6)]
    assert [m["lr"] for m in metrics] == pytest.approx([0.008, 0.01, 0.01])
    assert same(weights_of(resumed), weights_of(straight))
    assert resumed.publish() == straight.publish() == 6


def test_a_trainer_that_took_no_step_can_be_saved_and_restored(tmp_path):
    trainer = make_trainer()
    resumed = make_trainer(make_model(seed=5))
    resumed.restore(trainer.save(tmp_path, state={}, keep=1))
    for either in (trainer, resumed):
        either.step(make_batch())
    assert same(weights_of(resumed), weights_of(trainer))


def test_a_checkpoint_of_another_model_is_refused_and_changes_nothing(tmp_path):
    folder = make_trainer().save(tmp_path, state={}, keep=1)
    other = make_trainer(make_model(num_hidden_layers=1))
    before = weights_of(other)
    with pytest.raises(CheckpointFailed, match=r"holds another model: \d+ of \d+ tensors .* 'model.layers.1"):
        other.restore(folder)
    assert same(weights_of(other), before)


def test_the_manifest_lists_every_file(tmp_path):
    folder = make_trainer().save(tmp_path, state={}, keep=1)
    listed = json.loads((folder / "manifest.json").read_text())["files"]
    assert sorted(listed) == sorted(path.name for path in folder.iterdir() if path.name != "manifest.json")
