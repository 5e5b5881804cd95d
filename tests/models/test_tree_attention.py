from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounter

from ludus.models import packed_attention
from ludus.models import tree_attention as tree_module
from ludus.models.packed_attention import Segments, _attend
from ludus.models.tree_attention import BLOCK, _flex, tree_attention, tree_mask, troubles
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


def assert_mask_is_exact(ends):
    mask, size = tree_mask(ends, device="cpu"), max(2, -(-len(ends) // BLOCK))
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
    assert_mask_is_exact(subtree_ends(trie(family())))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 200)), min_size=1, max_size=6))
def test_any_trie_gets_exactly_its_mask(steps):
    """(how much of the row before is kept, how many own tokens follow)"""
    rows, fresh = [np.zeros(0, np.int64)], 0
    for kept, own in steps:
        rows.append(np.concatenate([rows[-1][:kept], np.arange(fresh, fresh + own)]))
        fresh += own
    assert_mask_is_exact(subtree_ends(trie(rows[1:])))


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


# ------------------------------------------------------------------------------------------------ where it cannot be used


@pytest.fixture
def on_gpu(monkeypatch):
    """Rows take a GPU's way: tree attention, and where that fails what stands in for the varlen kernel."""
    monkeypatch.setattr(tree_module, "_troubles", {})
    monkeypatch.setattr(packed_attention, "_takes_half", lambda value: True)
    monkeypatch.setattr(packed_attention, "_fused", packed_attention._looped)


def attend(*, tree):
    """Output and gradients, with the tree's mask or without any sharing."""
    rows = family()
    nodes = trie(rows)
    ends = subtree_ends(nodes)
    shared = Segments.of([len(row) for row in rows], spread=np.concatenate(nodes))
    segments = replace(shared, own=None, past=None, tree=tree_mask(ends, device="cpu") if tree else None)
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.randn((1, heads, len(ends), 16), generator=generator).requires_grad_() for heads in (4, 2, 2)]
    out, _ = _attend(torch.nn.Module(), *leaves, None, scaling=0.3, segments=segments)
    out.square().sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def assert_falls_back(*, match):
    with pytest.warns(UserWarning, match=match) as warned:
        found = [attend(tree=True) for _ in range(2)]
    assert sum("tree attention" in str(each.message) for each in warned) == 1, "said once"
    for one, other, expected in zip(*found, attend(tree=False), strict=True):
        assert torch.equal(one, expected)
        assert torch.equal(other, expected)
    assert len(troubles()) == 1


def test_where_it_has_no_backward_rows_are_attended_to_sequence_by_sequence_and_that_is_said_once(on_gpu):
    """A CPU has none, so nothing needs to be broken here."""
    assert_falls_back(match=r"tree attention .*4 heads of 16 over 2, float32, cpu.*the same numbers")


def test_a_compiler_that_fails_at_a_later_row_is_given_up_too(on_gpu, monkeypatch):
    def fail(*args, **knobs):
        raise torch._dynamo.exc.InternalTorchDynamoError("no kernel for this row, as ordered")

    monkeypatch.setattr(tree_module, "_tried", lambda form: "")
    monkeypatch.setattr(tree_module, "tree_attention", fail)
    assert_falls_back(match="no kernel for this row, as ordered")


def test_wrong_numbers_are_found_before_anything_is_trained_on_them(on_gpu, monkeypatch):
    monkeypatch.setattr(
        tree_module,
        "tree_attention",
        lambda query, key, value, **_: (query * key.mean() * value.mean()).transpose(1, 2),
    )
    assert_falls_back(match=r"its numbers are wrong by")


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), torch.AcceleratorError("CUDA error: lost")]
)
def test_memory_that_runs_out_and_a_lost_device_are_not_taken_for_trouble(on_gpu, monkeypatch, error):
    def fail(*args, **knobs):
        raise error

    monkeypatch.setattr(tree_module, "tree_attention", fail)
    with pytest.raises(type(error)):
        attend(tree=True)
    assert not troubles()


def test_its_trial_compares_with_plain_attention(monkeypatch):
    """Plain operations in its place: the trial itself, its mask and its gradients, on a device that has no backward for the real one."""

    def dense_tree(query, key, value, *, scaling, mask):
        at = torch.arange(query.shape[2])
        seen = mask.mask_mod(0, 0, at[:, None], at[None, :])
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=seen, scale=scaling, enable_gqa=True
        ).transpose(1, 2)

    monkeypatch.setattr(tree_module, "tree_attention", dense_tree)
    assert tree_module._gap((4, 2, 16, torch.float32, torch.device("cpu"))) < 1e-5
    assert tree_module._tried((4, 2, 16, torch.bfloat16, torch.device("cpu"))) == ""


def test_rows_of_any_length_and_form_are_served_by_few_compilations():
    """A compilation for every microbatch would take longer than the training."""
    counter = CompileCounter()
    compiled = torch.compile(_flex(compiled=False), backend=counter, dynamic=True)
    torch._dynamo.reset()
    for length in (130, 300, 513, 20, 700, 1000, 1025):
        ends = np.full(length, length)
        ends[length // 3 : length // 2] = length // 2
        mask = tree_mask(ends, device="cpu")
        query = torch.zeros(1, 2, mask.seq_lengths[0], 16)
        compiled(query, query, query, block_mask=mask)
    assert counter.frame_count <= 2
