import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.trainer.pack import make_microbatch, pack, row_length
from tests.trainer.examples import make_sequence


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 50))
def test_every_sequence_is_packed_once_and_the_budget_holds_unless_one_alone_breaks_it(lengths, budget):
    bins = pack(lengths, budget=budget)
    assert sorted(index for indices in bins for index in indices) == list(range(len(lengths)))
    assert all(len(indices) == 1 or sum(lengths[i] for i in indices) <= budget for indices in bins)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(40, 60))
def test_no_two_microbatches_would_fit_into_one(lengths, budget):
    loads = sorted(sum(lengths[i] for i in indices) for indices in pack(lengths, budget=budget))
    assert len(loads) == 1 or loads[0] + loads[1] > budget


def test_packing_is_first_fit_decreasing_and_equal_lengths_keep_their_order():
    assert pack([3, 5, 3, 2, 5], budget=8) == [[1, 0], [4, 2], [3]]


def test_what_has_nothing_to_predict_is_in_no_microbatch():
    assert pack([0, 4, 0], budget=8) == [[1]]


def test_a_row_ends_before_its_last_sampled_token():
    sequence = make_sequence(11)
    assert np.flatnonzero(sequence.sampled).tolist() == [4, 5, 8, 9]
    assert row_length(sequence) == 9
    assert row_length(make_sequence(3)) == 0


def test_each_predictor_sits_right_before_its_target():
    sequences = [make_sequence(11, seed=1), make_sequence(6, seed=2)]
    microbatch = make_microbatch(sequences)
    assert microbatch.ids[0].tolist() == [*sequences[0].ids[:9], *sequences[1].ids[:5]]
    assert microbatch.positions[0].tolist() == [*range(9), *range(5)]
    assert microbatch.segments.lengths == (9, 5)
    assert microbatch.segments.bounds.tolist() == [0, 9, 14]
    assert microbatch.predictors.tolist() == [3, 4, 7, 8, 12, 13]
    for name in ("ids", "advantages", "weights", "logprobs"):
        field = {"ids": "targets", "logprobs": "behaviour_logprobs"}.get(name, name)
        expected = np.concatenate([getattr(s, name)[s.sampled] for s in sequences])
        assert getattr(microbatch, field).tolist() == pytest.approx(expected.tolist())
