import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.models.packed_attention import Segments, _attend
from ludus.models.tree_attention import BLOCK, _flex, tree_attention, tree_mask
from ludus.trainer.pack import subtree_ends, trie


def family(seed=0):
    """Rows as sessions make them: a common prompt, then turns that part at different places; 600 tokens, 1,500 without sharing."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, 9, 300)
    rows = [
        np.concatenate([prompt[:n], rng.integers(0, 9, own)]) for n, own in ((300, 40), (300, 1), (200, 90), (40, 30))
    ]
    rows += [np.concatenate([rows[0][:320], rng.integers(0, 9, 60)]), rng.integers(0, 9, 130)]
    return sorted(rows, key=lambda row: row.tolist())


def dense(ends):
    at = np.arange(len(ends))
    return (at[None, :] <= at[:, None]) & (at[:, None] < ends[None, :])


def listed(numbers, indices):
    table = np.zeros(indices.shape[-2:], np.bool_)
    for row, (number, columns) in enumerate(zip(numbers[0, 0].tolist(), indices[0, 0].tolist(), strict=True)):
        table[row, columns[:number]] = True
    return table


def check_mask(ends):
    mask, size = tree_mask(ends, device="cpu"), -(-len(ends) // BLOCK)
    padded = np.eye(size * BLOCK, dtype=np.bool_)
    padded[: len(ends), : len(ends)] = dense(ends)
    blocks = padded.reshape(size, BLOCK, size, BLOCK).swapaxes(1, 2)
    full = listed(mask.full_kv_num_blocks, mask.full_kv_indices)
    partial = listed(mask.kv_num_blocks, mask.kv_indices)
    assert not (full & partial).any()
    assert np.array_equal(full | partial, blocks.any(axis=(2, 3))), "every block with a pair is visited, and no other"
    assert blocks.all(axis=(2, 3))[full].all(), "a block taken whole has no pair that must not be"
    at = torch.arange(size * BLOCK)
    pairs = mask.mask_mod(0, 0, at[:, None], at[None, :]).numpy()
    assert np.array_equal(pairs, padded)


def test_the_mask_of_a_family_of_sessions_is_each_token_and_what_precedes_it():
    check_mask(subtree_ends(trie(family())))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 200)), min_size=1, max_size=6))
def test_any_trie_gets_exactly_its_mask(steps):
    """(how much of the row before is kept, how many own tokens follow)"""
    rows, fresh = [np.zeros(0, np.int64)], 0
    for kept, own in steps:
        rows.append(np.concatenate([rows[-1][:kept], np.arange(fresh, fresh + own)]))
        fresh += own
    check_mask(subtree_ends(trie(rows[1:])))


def test_attention_over_the_trie_is_attention_over_each_sequence():
    rows = family()
    nodes = trie(rows)
    ends = subtree_ends(nodes)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn((1, heads, len(ends), 16), generator=generator) for heads in (4, 2, 2))
    segments = Segments.of([len(row) for row in rows], spread=np.concatenate(nodes))
    assert segments.spread is not None
    expected, _ = _attend(torch.nn.Module(), query, key, value, None, scaling=0.3, segments=segments)
    got = tree_attention(query, key, value, scaling=0.3, mask=tree_mask(ends, device="cpu"))
    assert torch.allclose(got, expected, atol=1e-5)


def test_rows_of_any_length_and_form_are_served_by_few_compilations():
    """A compilation for every microbatch would take longer than the training."""
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(_flex(compiled=False), backend=counter, dynamic=True)
    torch._dynamo.reset()
    for length in (130, 300, 513, 700, 1000, 1025):
        ends = np.full(length, length)
        ends[length // 3 : length // 2] = length // 2
        mask = tree_mask(ends, device="cpu")
        query = torch.zeros(1, 2, mask.seq_lengths[0], 16)
        compiled(query, query, query, block_mask=mask)
    assert counter.frame_count <= 2
