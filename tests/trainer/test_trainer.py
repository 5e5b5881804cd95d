import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from ludus.algorithms import make_algorithm
from ludus.config import AlgorithmConfig, TrainerConfig
from ludus.errors import TrainerFailed
from ludus.trainer import forward
from ludus.trainer.local import LocalTrainer
from ludus.trainer.sft import log_likelihood
from ludus.types import Batch
from ludus.weights.memory import MemoryChannel
from tests.algorithms.examples import make_group
from tests.trainer.examples import make_batch, make_model, make_sequence, make_trainer, same, weights_of


def gradients(trainer, sequences):
    trainer._accumulate(sequences)
    return [parameter.grad.clone() for parameter in trainer.model.parameters()]


def test_a_step_makes_what_was_good_likelier_and_what_was_bad_less_likely():
    trainer = make_trainer()
    good, bad = make_sequence(12, seed=1), make_sequence(12, seed=2)
    good = replace(good, advantages=good.sampled.astype(np.float32))
    bad = replace(bad, advantages=-bad.sampled.astype(np.float32))

    def mean_logprob(sequence):
        return np.mean(np.array(trainer.logprobs(sequence.ids))[sequence.sampled[1:]])

    before = mean_logprob(good), mean_logprob(bad)
    for _ in range(5):
        trainer.step(Batch((good, bad)))
    assert mean_logprob(good) > before[0]
    assert mean_logprob(bad) < before[1]


def test_the_microbatch_budget_changes_nothing():
    batch = make_batch()
    trainers = [make_trainer(microbatch_tokens=budget) for budget in (1, 40, 10_000)]
    alone, *packed = [gradients(trainer, batch.sequences) for trainer in trainers]
    for other in packed:
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(alone, other, strict=True))
    metrics = [trainer.step(batch) for trainer in trainers]
    assert [m["microbatches"] for m in metrics] == [5, 3, 1]
    for name in (
        "loss",
        "grad_norm",
        "entropy",
        "importance",
        "importance_max",
        "ess",
        "logprob_gap",
        "logprob_gap_max",
    ):
        assert [m[name] for m in metrics] == pytest.approx([metrics[0][name]] * 3, rel=1e-5, abs=1e-6)


def test_observation_tokens_have_exactly_no_gradient():
    trainer = make_trainer()
    sequence = make_sequence(15)
    garbage = np.where(sequence.sampled, 0, 1e6).astype(np.float32)
    tampered = replace(
        sequence,
        advantages=sequence.advantages + garbage,
        weights=sequence.weights + garbage,
        logprobs=sequence.logprobs + garbage,
    )
    assert not sequence.sampled[-1]
    other_end = sequence.ids.copy()
    other_end[-1] += 1
    trailing = replace(tampered, ids=other_end)
    expected = gradients(trainer, [sequence])
    for variant in (tampered, trailing):
        assert all(torch.equal(a, b) for a, b in zip(gradients(trainer, [variant]), expected, strict=True))


def test_a_token_of_advantage_0_has_exactly_no_gradient():
    trainer = make_trainer()
    sequence = make_sequence(15)
    neutral = replace(sequence, advantages=np.zeros(15, np.float32))
    assert not any(gradient.any() for gradient in gradients(trainer, [neutral]))


def test_an_empty_batch_is_skipped_and_counted():
    trainer = make_trainer()
    before = weights_of(trainer)
    for nothing in (Batch(()), make_batch(lengths=(3, 2))):  # no sequence; prompts that nobody answered
        assert trainer.step(nothing)["skipped"] == 1
    assert trainer.steps == 0
    assert same(weights_of(trainer), before)
    assert trainer.step(make_batch())["skipped"] == 0


def test_a_step_reports_what_a_person_must_watch():
    metrics = make_trainer().step(make_batch())
    expected = {
        "loss",
        "grad_norm",
        "lr",
        "entropy",
        "ratio",
        "clipped",
        "importance",
        "importance_max",
        "importance_capped",
    }
    expected |= {"logprob_gap", "logprob_gap_max", "ess", "tokens", "sampled_tokens", "tokens_per_s", "step_s"}
    assert expected <= metrics.keys()
    assert metrics["tokens"] == 84
    assert 0 < metrics["entropy"] <= np.log(60)
    assert 0 < metrics["ess"] <= 1


# ------------------------------------------------------------------------------------------------ steps that must not be applied


def spoiled_batch():
    """A batch made by an algorithm, whose third sequence lost a logprob on the way."""
    groups = [
        make_group([0.0, 1.0], name=name, sequences=[[make_sequence(9, seed=1)], [make_sequence(12, seed=2)]])
        for name in ("a", "b")
    ]
    batch = make_algorithm(AlgorithmConfig()).batch(groups)
    logprobs = np.where(batch.sequences[2].sampled, np.nan, 0).astype(np.float32)
    spoiled = replace(batch.sequences[2], logprobs=logprobs)
    return replace(batch, sequences=(*batch.sequences[:2], spoiled, *batch.sequences[3:]))


@pytest.mark.parametrize("budget", [1, 10_000])
def test_a_loss_that_is_not_finite_leaves_weights_and_optimiser_alone_and_names_the_sequence(budget):
    trainer, twin = (make_trainer(microbatch_tokens=budget) for _ in range(2))
    for either in (trainer, twin):
        either.step(make_batch(1))
    before = weights_of(trainer)
    with pytest.raises(
        TrainerFailed, match=r"sequence 2 of 4 \(trajectory b0, task bandit/train/b, environment bandit\)"
    ):
        trainer.step(spoiled_batch())
    assert same(weights_of(trainer), before)
    assert trainer.steps == 1
    trainer.step(make_batch(2))
    twin.step(make_batch(2))
    assert same(weights_of(trainer), weights_of(twin))


def test_a_gradient_that_is_not_finite_is_refused_although_the_loss_is():
    def steep(tokens):
        return torch.sqrt(tokens.logprobs - tokens.old_logprobs), {}  # 0, with an infinite slope

    trainer = make_trainer(loss=steep)
    before = weights_of(trainer)
    with pytest.raises(TrainerFailed, match=r"has loss 0\.0 and gradient norm (nan|inf).* came from sequence 0 of 5\."):
        trainer.step(make_batch())
    assert same(weights_of(trainer), before)


# ------------------------------------------------------------------------------------------------ versions


def test_versions_count_published_steps():
    channel = MemoryChannel()
    trainer = make_trainer(channel=channel)
    assert trainer.publish() == 0
    trainer.step(make_batch())
    assert trainer.version == 0
    assert trainer.publish() == trainer.version == 1
    assert trainer.publish() == 1
    assert all(torch.equal(tensor, weights_of(trainer)[name]) for name, tensor in channel.fetch(1).items())


def test_tied_weights_are_published_once():
    tied, free = MemoryChannel(), MemoryChannel()
    make_trainer(channel=tied).publish()
    make_trainer(make_model(tie_word_embeddings=False), channel=free).publish()
    assert "lm_head.weight" not in tied.fetch(0)
    assert "lm_head.weight" in free.fetch(0)
    assert "model.embed_tokens.weight" in tied.fetch(0)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_probe_logprobs_are_those_of_the_plain_model_at_the_sampling_temperature(temperature):
    ids = torch.arange(3, 15)
    model = make_model().eval()
    with torch.no_grad():
        table = (model(input_ids=ids.unsqueeze(0)).logits[0, :-1] / temperature).log_softmax(-1)
    got = make_trainer(make_model(), temperature=temperature).logprobs(ids.tolist())
    assert got == pytest.approx(table.gather(1, ids[1:, None])[:, 0].tolist(), abs=1e-5)


def test_dropout_is_off():
    trainer = make_trainer(make_model(attention_dropout=0.5))
    assert trainer.logprobs(range(9)) == trainer.logprobs(range(9))


def test_a_bfloat16_model_keeps_updates_too_small_for_bfloat16_and_publishes_bfloat16():
    channel = MemoryChannel()
    trainer = make_trainer(make_model().bfloat16(), channel=channel, lr=1e-7)
    before = {name: master.detach().clone() for name, master in trainer._masters.named_parameters()}
    trainer.step(make_batch())
    moved = dict(trainer._masters.named_parameters())
    assert {tensor.dtype for tensor in moved.values()} == {torch.float32}
    assert all(((moved[name] - before[name]).abs() < 2e-7).all() for name in before)
    assert sum((moved[name] != before[name]).sum() for name in before) > 1000
    assert all(torch.equal(weight, moved[name].bfloat16()) for name, weight in trainer.model.named_parameters())
    assert {tensor.dtype for tensor in channel.fetch(trainer.publish()).values()} == {torch.bfloat16}


def test_a_bfloat16_model_learns_as_its_float32_twin_does():
    half, whole = make_trainer(make_model().bfloat16()), make_trainer(make_model().bfloat16().float())
    for step in range(6):
        losses = [trainer.step(make_batch(step))["loss"] for trainer in (half, whole)]
        assert losses[0] == pytest.approx(losses[1], abs=0.02)
    for name, master in half._masters.named_parameters():
        assert (master - weights_of(whole)[name]).abs().mean() < 0.01, "six steps of 0.01 each"


def test_rotary_frequencies_are_not_rounded_to_the_dtype_of_the_weights():
    model = make_model()
    exact = model.model.rotary_emb.inv_freq.clone()
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    trainer = make_trainer(model)
    assert torch.equal(trainer.model.model.rotary_emb.inv_freq, exact)
    assert trainer.model.dtype == torch.bfloat16


# ------------------------------------------------------------------------------------------------ optimiser


def test_warmup_sets_the_learning_rate_of_each_step():
    trainer = make_trainer(lr=0.1, warmup_steps=4)
    assert [trainer.step(make_batch(i))["lr"] for i in range(5)] == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1])


def test_the_gradient_is_clipped_to_its_greatest_norm():
    trainer = make_trainer(loss=log_likelihood, max_grad_norm=1e-3)
    seen = []
    apply = trainer._optimizer.step
    trainer._optimizer.step = lambda: (seen.append(trainer._grad_norm().item()), apply())
    metrics = trainer.step(make_batch())
    assert metrics["grad_norm"] > 1e-2
    assert seen == pytest.approx([1e-3], rel=1e-3)


def test_norms_do_not_decay_and_matrices_do():
    decay, none = (make_trainer(weight_decay=d, lr=0.1) for d in (0.5, 0.0))
    for trainer in (decay, none):
        trainer.step(make_batch())
    decayed, plain = weights_of(decay), weights_of(none)
    norms = [name for name in plain if "norm" in name]
    assert norms
    for name in plain:
        assert torch.equal(decayed[name], plain[name]) == (name in norms)


# ------------------------------------------------------------------------------------------------ threads


def test_forward_and_backward_use_the_configured_threads_and_the_caller_gets_its_own_back():
    seen = []

    class Watch(torch.autograd.Function):
        @staticmethod
        def forward(ctx, values):
            seen.append(torch.get_num_threads())
            return values.clone()

        @staticmethod
        def backward(ctx, gradient):
            seen.append(torch.get_num_threads())
            return gradient

    def watched(tokens):
        return Watch.apply(-tokens.logprobs), {}

    before = torch.get_num_threads()
    trainer = make_trainer(loss=watched, threads=3)
    after = []

    def work():
        torch.set_num_threads(2)
        trainer.step(make_batch())
        after.append(torch.get_num_threads())

    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert set(seen) == {3}
        assert after == [2]
        assert torch.get_num_threads() == before
    finally:
        torch.set_num_threads(before)  # new threads start with the last value that any thread set


# ------------------------------------------------------------------------------------------------ reference, entropy, sequence ratio


def make_algorithm_trainer(model=None, *, reference=None, microbatch_tokens=4096, **knobs):
    config = AlgorithmConfig(**knobs)
    return LocalTrainer(
        make_model() if model is None else model,
        algorithm_loss=make_algorithm(config).loss,
        config=TrainerConfig(lr=1e-2, microbatch_tokens=microbatch_tokens),
        reference=reference,
        entropy_gradient=config.entropy_weight > 0,
    )


def test_a_reference_stays_as_it_was_and_its_distance_grows_from_exactly_0():
    reference = make_model()
    before = {name: tensor.clone() for name, tensor in reference.state_dict().items()}
    trainer = make_algorithm_trainer(reference=reference, kl="k3", kl_weight=0.1)
    distances = [trainer.step(make_batch())["kl_k3"] for _ in range(3)]
    assert distances[0] == 0
    assert 0 < distances[1] < distances[2]
    assert all(torch.equal(tensor, before[name]) for name, tensor in reference.state_dict().items())


def test_in_half_precision_the_reference_is_as_exact_as_the_policy():
    trainer = make_algorithm_trainer(
        make_model().bfloat16(), reference=make_model().bfloat16(), kl="k3", kl_weight=0.1, ratio_base="behaviour"
    )
    assert trainer.step(make_batch())["kl_k3"] == 0


def test_a_strong_kl_term_holds_the_policy_near_the_reference():
    def distance_after(weight):
        trainer = make_algorithm_trainer(reference=make_model(), kl="k2", kl_weight=weight)
        return [trainer.step(make_batch())["kl_k2"] for _ in range(12)][-1]

    assert distance_after(100.0) < distance_after(1e-9) / 2


def test_an_entropy_bonus_raises_the_entropy_also_in_pieces_of_a_large_vocabulary(monkeypatch):
    batch = make_batch()
    neutral = Batch(tuple(replace(s, advantages=np.zeros(len(s), np.float32)) for s in batch.sequences))
    trainer = make_algorithm_trainer(entropy_weight=1.0)
    whole = gradients(trainer, neutral.sequences)
    monkeypatch.setattr(forward.sampled_logprobs, "__kwdefaults__", {"entropy_gradient": False, "max_logits": 120})
    pieces = gradients(trainer, neutral.sequences)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(whole, pieces, strict=True))
    entropies = [trainer.step(neutral)["entropy"] for _ in range(5)]
    assert entropies[-1] > entropies[0]


@pytest.mark.parametrize(
    "knobs",
    [
        {"ratio": "sequence", "ratio_base": "behaviour"},
        {"importance": "sequence"},
        {"loss": "cispo", "ratio_base": "behaviour", "kl": "k1", "kl_weight": 0.3},
        {"loss": "reinforce", "kl": "k2", "kl_weight": 0.3, "entropy_weight": 0.1},
        {"ratio_base": "behaviour", "dual_clip": 3.0, "kl": "k3", "kl_weight": 0.3},
    ],
)
def test_the_microbatch_budget_and_the_order_of_sequences_change_nothing_for_any_loss(knobs):
    batch = make_batch()
    found = []
    for budget, sequences in ((1, batch.sequences), (40, batch.sequences[::-1]), (10_000, batch.sequences)):
        reference = make_model(seed=1) if "kl" in knobs else None
        trainer = make_algorithm_trainer(reference=reference, microbatch_tokens=budget, **knobs)
        found.append(gradients(trainer, sequences))
    for other in found[1:]:
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found[0], other, strict=True))
