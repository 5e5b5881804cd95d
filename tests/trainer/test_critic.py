"""The critic on packed rows: values as of each sequence alone, learnt from returns, and the policy is not moved by it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ludus.config import CriticConfig, TrainerConfig
from ludus.errors import CheckpointFailed, TrainerFailed
from ludus.trainer.critics import value as critic_module
from ludus.trainer.critics.value import ValueCritic, explained, value_losses
from ludus.types import Batch, ValueTargets
from tests.algorithms.examples import make_trajectory
from tests.trainer.examples import make_model, make_sequence, make_trainer, same, weights_of

LONG = make_sequence(30, seed=30)
SIBLING = make_sequence(24, seed=1, ids=[*LONG.ids[:20], 1, 2, 3, 4])
STRANGER = make_sequence(17, seed=3)
TRAJECTORIES = [make_trajectory("a", sequences=[LONG, STRANGER]), make_trajectory("b", sequences=[SIBLING])]
RUN = TrainerConfig(lr=1e-2)


def made(kind="head", *, trainer=RUN, **knobs):
    policy = make_model()
    own = make_model() if kind == "model" else None
    config = CriticConfig(kind=kind, lr=1e-2, **knobs)
    return policy, ValueCritic(config, policy=policy, model=own, trainer=trainer)


def trained(kind="head", *, trainer=RUN, **knobs):
    policy, critic = made(kind, trainer=trainer, **knobs)
    with torch.no_grad():
        critic.learning["head"].weight.copy_(torch.linspace(-1, 1, 32).unsqueeze(0))
    whole = make_trainer(policy)
    whole._critic = critic
    return whole, critic


def targets(sequence, level):
    mask = sequence.sampled.astype(np.float32)
    return replace(
        sequence, critic=ValueTargets(values=0 * mask, returns=np.float32(level) * mask, weights=mask / mask.sum() / 2)
    )


BATCH = Batch((targets(LONG, 1.0), targets(STRANGER, -2.0)))


@pytest.mark.parametrize("kind", ["head", "model"])
def test_values_on_shared_packed_rows_are_those_of_each_sequence_alone(kind):
    for budget in (1, 40, 10_000):
        trainer, _ = trained(kind, trainer=TrainerConfig(microbatch_tokens=budget))
        got = trainer.values(TRAJECTORIES)
        assert [len(own) for own in got] == [LONG.num_sampled + STRANGER.num_sampled, SIBLING.num_sampled]
        model = make_model().eval()
        for own, sequences in zip(got, ([LONG, STRANGER], [SIBLING]), strict=True):
            expected = []
            for sequence in sequences:
                ids = torch.tensor(sequence.ids.astype("int64")).unsqueeze(0)
                hidden = model.base_model(input_ids=ids)[0][0, :-1][torch.tensor(sequence.sampled[1:])]
                expected.append((hidden @ torch.linspace(-1, 1, 32)).detach().numpy())
            assert own == pytest.approx(np.concatenate(expected), abs=1e-4)


def test_a_new_critic_expects_nothing():
    policy, critic = made()
    trainer = make_trainer(policy)
    trainer._critic = critic
    assert not any(own.any() for own in trainer.values(TRAJECTORIES))


@pytest.mark.parametrize("kind", ["head", "model"])
def test_a_critic_learns_the_returns_and_does_not_move_the_policy(kind):
    trainer, _ = trained(kind, steps=20)
    alone = make_trainer()
    losses = [trainer.step(BATCH)["critic_loss"] for _ in range(3)]
    assert losses[-1] < losses[0] / 2
    for _ in range(3):
        alone.step(BATCH)
    assert same(weights_of(trainer), weights_of(alone))


def test_a_budget_of_tokens_changes_no_step_of_the_critic():
    learnt = []
    for budget in (1, 10_000):
        trainer, critic = trained(trainer=TrainerConfig(microbatch_tokens=budget))
        trainer.step(BATCH)
        learnt.append(critic.learning["head"].weight.detach().clone())
    assert torch.allclose(*learnt, atol=1e-6)


def scarce(monkeypatch, *, room):
    """From now on no microbatch of more than `room` tokens gets through a critic's forward pass."""
    plain = critic_module.sampled_hidden

    def limited(model, microbatch):
        if microbatch.ids.shape[1] > room:
            raise torch.OutOfMemoryError("CUDA out of memory, as ordered")
        return plain(model, microbatch)

    monkeypatch.setattr(critic_module, "sampled_hidden", limited)


@pytest.mark.parametrize("kind", ["head", "model"])
def test_memory_that_runs_out_splits_a_critics_microbatches_and_changes_neither_its_values_nor_its_step(
    kind, monkeypatch
):
    learnt, values, events = [], [], []
    for room in (10_000, 35):
        trainer, critic = trained(kind, steps=2)
        critic._budget.on_event = lambda kind, **fields: events.append((kind, fields["microbatch_tokens"]))
        with monkeypatch.context() as scarcity:
            scarce(scarcity, room=room)
            values.append(np.concatenate(trainer.values(TRAJECTORIES)))
            trainer.step(BATCH)
        learnt.append(critic.learning["head"].weight.detach().clone())
    assert [kind for kind, _ in events] == ["out_of_memory"], "once: it stays careful"
    assert events[0][1] <= 35
    assert values[1] == pytest.approx(values[0], abs=1e-5)
    assert torch.allclose(*learnt, atol=1e-6)


def test_a_sequence_that_fits_nowhere_ends_the_run_before_critic_or_policy_have_moved(monkeypatch):
    trainer, critic = trained("model")
    before, head = weights_of(trainer), critic.learning["head"].weight.detach().clone()
    scarce(monkeypatch, room=20)
    with pytest.raises(TrainerFailed, match=r"a single sequence of \d+ tokens.*as ordered.*rollout.max_tokens"):
        trainer.step(BATCH)
    assert same(weights_of(trainer), before)
    assert torch.equal(critic.learning["head"].weight, head)


def test_a_clipped_value_gains_nothing_beyond_the_clip():
    old, returns = torch.zeros(3), torch.full((3,), 2.0)
    values = torch.tensor([0.1, 0.5, -0.5], requires_grad=True)
    losses = value_losses(values, old, returns, clip=0.2)
    losses.sum().backward()
    assert losses.tolist() == pytest.approx([1.9**2 / 2, 1.8**2 / 2, 2.5**2 / 2])
    assert values.grad.tolist() == pytest.approx([-1.9, 0.0, -2.5]), "on the wrong side it is still pulled back"


def test_explained_variance_is_1_for_a_critic_that_was_right_and_0_for_one_that_said_nothing():
    returns, weights = torch.tensor([1.0, 2.0, 9.0]), torch.tensor([0.5, 0.5, 0.0])
    right = {"values": torch.tensor([1.0, 2.0, 0.0]), "returns": returns, "weights": weights}
    mute = {"values": torch.zeros(3), "returns": returns, "weights": weights}
    assert explained(right) == pytest.approx(1)
    assert explained(mute) == pytest.approx(0)


def test_a_return_that_is_not_finite_takes_no_step_of_critic_or_policy():
    trainer, critic = trained()
    before, head = weights_of(trainer), critic.learning["head"].weight.detach().clone()
    with pytest.raises(TrainerFailed, match=r"critic's pass 0 .*lower critic\.lr"):
        trainer.step(Batch((targets(LONG, float("nan")),)))
    assert same(weights_of(trainer), before)
    assert torch.equal(critic.learning["head"].weight, head)


@pytest.mark.parametrize("kind", ["head", "model"])
def test_a_restored_critic_goes_on_bit_for_bit(kind, tmp_path):
    trainer, critic = trained(kind, steps=2)
    trainer.step(BATCH)
    folder = trainer.save(tmp_path, state={}, keep=1)
    trainer.step(BATCH)
    other, again = made(kind, steps=2)
    resumed = make_trainer(other)
    resumed._critic = again
    resumed.restore(folder)
    resumed.step(BATCH)
    assert same(weights_of(resumed), weights_of(trainer))
    learnt = [{n: p.detach() for n, p in each.learning.named_parameters()} for each in (critic, again)]
    assert same(*learnt)


def test_a_checkpoint_without_a_critic_is_refused(tmp_path):
    plain = make_trainer()
    folder = plain.save(tmp_path, state={}, keep=1)
    with pytest.raises(CheckpointFailed, match="holds no critic"):
        trained()[0].restore(folder)


@pytest.mark.parametrize("kind", ["head", "model"])
def test_in_its_warm_up_the_critic_learns_alone_and_every_batch_still_has_a_version(kind):
    trainer, critic = trained(kind, warmup=2)
    policy, judge = weights_of(trainer), critic.learning["head"].weight.detach().clone()
    for count in (1, 2):
        metrics = trainer.step(BATCH)
        assert (metrics["critic_alone"], trainer.publish()) == (1.0, count)
        assert "loss" not in metrics, "the policy took no step that it could tell of"
    assert same(policy, weights_of(trainer))
    assert not torch.equal(judge, critic.learning["head"].weight)
    averages = [state["exp_avg"] for state in trainer._optimizer.state.values()]
    assert not any(average.any() for average in averages), "nor do gradients of the warm-up linger"
    assert "critic_alone" not in trainer.step(BATCH)
    assert not same(policy, weights_of(trainer))
    assert trainer.publish() == 3
