import asyncio
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.config import SftConfig, TrainerConfig
from ludus.errors import ConfigError
from ludus.trainer.optimizer import warmup_cosine
from ludus.trainer.sft import clone, cloning_batches, cloning_trainer
from ludus.trainer.threaded import ThreadedTrainer
from tests.trainer.examples import make_model, make_sequence

SEQUENCES = [make_sequence(length, seed=length) for length in (8, 13, 10, 21, 9)]


def run(model, *, steps=40, seed=0, sequences=SEQUENCES):
    losses = []
    config = SftConfig(steps=steps, batch_tokens=30, lr=2e-2, warmup_steps=3)
    trainer = cloning_trainer(model, config=config, trainer=TrainerConfig(microbatch_tokens=40), seed=seed)
    record = lambda step, metrics: losses.append(metrics["loss"])  # noqa: E731
    asyncio.run(clone(ThreadedTrainer(trainer), sequences, config=config, seed=seed, on_step=record))
    return losses


def test_cloning_lowers_the_cross_entropy_of_the_sampled_tokens():
    losses = run(make_model())
    assert len(losses) == 40
    assert losses[-1] < 0.5 < 3 < losses[0]


def test_the_loss_is_the_mean_cross_entropy_over_sampled_tokens():
    model = make_model().eval()
    sequence = SEQUENCES[1]
    ids = torch.tensor(sequence.ids.astype("int64"))
    with torch.no_grad():
        logits = model(input_ids=ids.unsqueeze(0)).logits[0, :-1]
    mask = torch.tensor(sequence.sampled[1:])
    expected = torch.nn.functional.cross_entropy(logits[mask], ids[1:][mask]).item()
    assert run(make_model(), steps=1, sequences=[sequence])[0] == pytest.approx(expected, abs=1e-5)


def test_the_same_seed_gives_the_same_weights_and_another_seed_another_order():
    models = [make_model() for _ in range(3)]
    losses = [run(model, steps=5, seed=seed) for model, seed in zip(models, (1, 1, 2), strict=True)]
    assert losses[0] == losses[1] != losses[2]
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))


def test_logprobs_are_not_needed():
    silent = [
        s.__class__(s.ids, s.sampled, np.full(len(s), np.nan, np.float32), s.versions, s.turns) for s in SEQUENCES
    ]
    assert np.isfinite(run(make_model(), steps=2, sequences=silent)).all()


def test_a_bfloat16_model_comes_back_in_bfloat16():
    model = make_model().bfloat16()
    run(model, steps=2)
    assert model.dtype == torch.bfloat16


def test_nothing_to_clone_is_said():
    with pytest.raises(ConfigError, match="none of the 1 sequences has a sampled token"):
        run(make_model(), sequences=[make_sequence(3)])


@settings(deadline=None)
@given(st.integers(0, 5), st.integers(5, 60))
def test_batches_hold_their_budget_and_every_epoch_sees_every_sequence_once(seed, batch_tokens):
    batches = list(islice(cloning_batches(SEQUENCES, batch_tokens=batch_tokens, seed=seed), 20))
    assert all(len(batch.sequences) == 1 or batch.num_tokens <= batch_tokens for batch in batches)
    assert all(sum(s.weights.sum() for s in batch.sequences) == pytest.approx(1) for batch in batches)
    order = [id(s.ids) for batch in batches for s in batch.sequences]
    assert {len(set(order[i : i + 5])) for i in range(0, len(order) - 4, 5)} == {5}


def test_the_rate_warms_up_and_falls_to_0():
    rate = warmup_cosine(1.0, warmup_steps=2, steps=6)
    assert [rate(step) for step in range(3)] == pytest.approx([0.5, 1.0, 1.0])
    assert rate(4) == pytest.approx(0.5)
    assert rate(6) == rate(60) == pytest.approx(0)
