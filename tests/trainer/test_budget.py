from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ludus.errors import TrainerFailed
from ludus.trainer import local as trainer_module
from ludus.trainer.budget import MOST_TOKENS, SHARE, Budget, affordable
from tests.trainer.examples import make_batch, make_model, make_trainer, same, weights_of

GIB = 2**30
CUDA = torch.device("cuda")


@given(st.integers(1, 10**5), st.integers(1, 10**12), st.integers(1, 10**12))
def test_what_is_affordable_fits_into_its_share_unless_that_is_next_to_nothing(tokens, taken, free):
    found = affordable(tokens, taken=taken, free=free)
    assert 256 <= found <= MOST_TOKENS
    assert found == 256 or found * taken / tokens <= SHARE * free * 1.001


def test_a_gpus_budget_is_found_by_one_measured_microbatch():
    budget = Budget(0, device=CUDA)
    assert (budget.tokens, budget.found) == (4096, False)
    budget.learn(4000, taken=10 * GIB, free=100 * GIB)
    assert (budget.tokens, budget.found) == (29952, True), "4,000 took 10 GiB, and 75 are to be had"


def test_what_a_person_asked_for_and_what_a_cpu_has_are_not_measured():
    assert Budget(512, device=CUDA).found
    on_cpu = Budget(0, device=torch.device("cpu"))
    assert (on_cpu.tokens, on_cpu.found) == (4096, True)


# ------------------------------------------------------------------------------------------------ out of memory


def scarce(monkeypatch, *, room, when="forward"):
    """From now on no microbatch of more than `room` tokens gets through its forward pass, or all of its backward pass."""
    plain = trainer_module.sampled_logprobs

    def limited(model, microbatch, **knobs):
        found = plain(model, microbatch, **knobs)
        if microbatch.ids.shape[1] > room:
            if when == "forward":
                raise torch.OutOfMemoryError("CUDA out of memory")
            fail_once(model.get_input_embeddings().weight)  # whose gradient is the last in a backward pass
        return found

    monkeypatch.setattr(trainer_module, "sampled_logprobs", limited)


def fail_once(parameter):
    def fail(gradient):
        handle.remove()
        raise torch.OutOfMemoryError("CUDA out of memory")

    handle = parameter.register_hook(fail)


@pytest.mark.parametrize("when", ["forward", "backward"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_out_of_memory_a_step_goes_on_with_smaller_microbatches_and_is_bit_for_bit_a_step_with_those(
    monkeypatch, when, dtype
):
    events = []
    small, large = (make_trainer(make_model().to(dtype), microbatch_tokens=tokens) for tokens in (39, 1000))
    large._budget.on_event = lambda kind, **fields: events.append((kind, fields))
    expected = small.step(make_batch())
    with monkeypatch.context() as scarcity:
        scarce(scarcity, room=45, when=when)
        metrics = large.step(make_batch())
    assert [(kind, fields["microbatch_tokens"]) for kind, fields in events] == [("out_of_memory", 39)]
    assert metrics["microbatches"] == expected["microbatches"] > 1
    assert same(weights_of(large), weights_of(small))
    assert same(dict(large._masters.named_parameters()), dict(small._masters.named_parameters()))
    assert large.step(make_batch(1))["microbatches"] == small.step(make_batch(1))["microbatches"], "and stays careful"
    assert len(events) == 1


def test_a_sequence_that_fits_nowhere_ends_the_run_with_what_to_change(monkeypatch):
    trainer = make_trainer()
    trainer.step(make_batch())
    before = weights_of(trainer)
    scarce(monkeypatch, room=20)
    with pytest.raises(
        TrainerFailed, match=r"a single sequence of \d+ tokens.*checkpoint_activations.*rollout.max_tokens"
    ):
        trainer.step(make_batch())
    assert same(weights_of(trainer), before)
    assert trainer.steps == 1


def test_weights_that_do_not_fit_are_refused_with_what_to_change(monkeypatch):
    def scarce(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(trainer_module, "make_optimizer", scarce)
    with pytest.raises(TrainerFailed, match=r"AdamW's averages do not fit.*18 bytes.*lora\.rank"):
        make_trainer()


def test_what_is_left_of_the_first_step_goes_by_the_budget_that_was_found(monkeypatch):
    finding, known = (make_trainer(microbatch_tokens=tokens) for tokens in (39, 1000))
    real, sizes = finding._budget.microbatch, []

    @contextmanager
    def measured(*, tokens, sequences):
        with real(tokens=tokens, sequences=sequences):
            sizes.append(tokens)
            yield
        finding._budget.tokens = 1000

    monkeypatch.setattr(finding._budget, "microbatch", measured)
    batch = make_batch(lengths=(30, 9, 17, 22, 6))
    numbers, expected = finding.step(batch), known.step(batch)
    assert len(sizes) == numbers["microbatches"] == 2
    assert numbers["sampled_tokens"] == expected["sampled_tokens"]
    assert sizes[0] <= 39 < sizes[1]
    assert numbers["loss"] == pytest.approx(expected["loss"], abs=1e-5)
    assert numbers["grad_norm"] == pytest.approx(expected["grad_norm"], abs=1e-5)
