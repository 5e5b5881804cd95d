import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ludus.trainer.pack import common_prefix, make_microbatch, pack, row_ids, row_length, sampled_values, trie
from tests.trainer.examples import make_sequence

rows_of_few_tokens = st.lists(st.lists(st.integers(0, 2), max_size=8).map(np.array), max_size=12)


def computed(rows, indices):
    return 1 + max(int(nodes[-1]) for nodes in trie([rows[index] for index in indices]))


@given(rows_of_few_tokens, st.integers(1, 20))
def test_every_row_is_packed_once_and_the_budget_holds_unless_one_alone_breaks_it(rows, budget):
    bins = pack(rows, budget=budget)
    packed = sorted(index for indices in bins for index in indices)
    assert packed == [index for index, row in enumerate(rows) if len(row)]
    assert all(len(indices) == 1 or computed(rows, indices) <= budget for indices in bins)


@given(rows_of_few_tokens)
def test_with_room_enough_every_beginning_that_rows_have_in_common_is_computed_once(rows):
    for indices in pack(rows, budget=1000):
        beginnings = {tuple(rows[index][: n + 1]) for index in indices for n in range(len(rows[index]))}
        assert computed(rows, indices) == len(beginnings)


@given(rows_of_few_tokens)
def test_a_node_stands_for_one_beginning_and_no_other(rows):
    of_node = {}
    for row, nodes in zip(rows, trie(rows), strict=True):
        assert len(nodes) == len(row)
        for n, node in enumerate(nodes):
            assert of_node.setdefault(int(node), tuple(row[: n + 1])) == tuple(row[: n + 1])


def test_packing_does_not_depend_on_the_order_of_what_is_packed():
    rows = [np.array(row) for row in ([7, 7], [1, 2, 3], [7, 1], [1, 2])]
    backwards = [[len(rows) - 1 - index for index in indices] for indices in pack(rows[::-1], budget=4)]
    assert pack(rows, budget=4) == backwards == [[3, 1], [2, 0]]


def test_what_has_nothing_to_predict_is_in_no_microbatch():
    assert pack([np.array([]), np.arange(4), np.array([])], budget=8) == [[1]]


def test_a_common_prefix_ends_where_the_first_tokens_differ_or_one_row_does():
    assert common_prefix(np.array([1, 2, 3]), np.array([1, 2, 4])) == 2
    assert common_prefix(np.array([1, 2, 3]), np.array([1, 2])) == 2
    assert common_prefix(np.array([5]), np.array([6])) == 0


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
    assert microbatch.segments.spread is None, "these two have nothing in common"
    assert microbatch.predictors.tolist() == [3, 4, 7, 8, 12, 13]
    for name in ("ids", "advantages", "weights", "logprobs"):
        values = sampled_values(sequences, name, device=torch.device("cpu"))
        found = microbatch.targets if name == "ids" else values
        expected = np.concatenate([getattr(s, name)[s.sampled] for s in sequences])
        assert found.tolist() == pytest.approx(expected.tolist())


def test_sequences_that_begin_alike_share_a_row_and_each_predicts_its_own():
    first = make_sequence(11, seed=1)
    second = make_sequence(11, seed=1, ids=[*first.ids[:7], *(first.ids[7:] + 1)])
    microbatch = make_microbatch([first, second])
    assert microbatch.ids[0].tolist() == [*first.ids[:9], *second.ids[7:9]]
    assert microbatch.positions[0].tolist() == [*range(9), 7, 8]
    assert microbatch.segments.lengths == (9, 9)
    assert microbatch.segments.spread.tolist() == [*range(9), *range(7), 9, 10]
    assert microbatch.segments.gather.tolist() == [*range(9), 16, 17]
    assert microbatch.predictors.tolist() == [3, 4, 7, 8, 3, 4, 9, 10]
    assert microbatch.targets.tolist() == [*first.ids[first.sampled], *second.ids[second.sampled]]
    assert len(row_ids(first)) == 9


def test_what_does_not_fit_at_once_is_divided_evenly():
    rows = [np.full(10, number) for number in range(7)]
    assert [len(each) for each in pack(rows, budget=60)] == [4, 3]
    assert [len(each) for each in pack(rows, budget=70)] == [7]
